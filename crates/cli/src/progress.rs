//! A progress bar on standard error, for commands that read or send for a long time.

use std::io::{IsTerminal as _, Write as _};

/// Cells of the bar.
const WIDTH: usize = 20;
/// Returns to the start of the line, and erases it.
const ERASE: &str = "\r\x1b[2K";

/// One line that is drawn again and again. Writes nothing if standard error is not a terminal.
pub(crate) struct Progress {
    on_terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            on_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Draws the bar. `share` is from 0 to 1. The text should have at most 55 characters, so that the
    /// line fits.
    pub(crate) fn show(&self, share: f64, text: &str) {
        self.write(&format!("{ERASE}{} {text}", bar(share)));
    }

    fn write(&self, text: &str) {
        if self.on_terminal {
            let mut terminal = std::io::stderr().lock();
            // If the bar cannot be drawn, the command has not failed.
            let _drawn = terminal
                .write_all(text.as_bytes())
                .and_then(|()| terminal.flush());
        }
    }
}

impl Drop for Progress {
    /// Erases the bar, so that only the output remains.
    fn drop(&mut self) {
        self.write(ERASE);
    }
}

fn bar(share: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to the width"
    )]
    let full = (share.clamp(0.0, 1.0) * WIDTH as f64) as usize;
    format!("[{}{}]", "#".repeat(full), " ".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_is_full_at_one_and_never_overflows() {
        for (share, full) in [(0.0, 0), (0.49, 9), (1.0, 20), (3.0, 20), (f64::NAN, 0)] {
            assert_eq!(bar(share).matches('#').count(), full, "{share}");
            assert_eq!(bar(share).len(), WIDTH + 2, "{share}");
        }
    }
}
