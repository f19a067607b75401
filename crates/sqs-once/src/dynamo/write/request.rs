//! Requests for single writes.

use aws_sdk_dynamodb::{
    Client,
    operation::{
        put_item::builders::PutItemFluentBuilder, update_item::builders::UpdateItemFluentBuilder,
    },
    types::{Put, Update},
};

pub(crate) fn put_item(client: &Client, put: Put) -> PutItemFluentBuilder {
    client
        .put_item()
        .table_name(put.table_name)
        .set_item(Some(put.item))
        .set_condition_expression(put.condition_expression)
        .set_expression_attribute_names(put.expression_attribute_names)
        .set_expression_attribute_values(put.expression_attribute_values)
        .set_return_values_on_condition_check_failure(put.return_values_on_condition_check_failure)
}

pub(crate) fn update_item(client: &Client, update: Update) -> UpdateItemFluentBuilder {
    client
        .update_item()
        .table_name(update.table_name)
        .set_key(Some(update.key))
        .update_expression(update.update_expression)
        .set_condition_expression(update.condition_expression)
        .set_expression_attribute_names(update.expression_attribute_names)
        .set_expression_attribute_values(update.expression_attribute_values)
        .set_return_values_on_condition_check_failure(
            update.return_values_on_condition_check_failure,
        )
}
