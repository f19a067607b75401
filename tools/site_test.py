"""Opens every page of the site in Chromium, on a phone and on a desk, in light and dark.

    python tools/site_test.py [-v] [TEST...]     what `make site` runs, after `mdbook build docs`

SHOTS=DIRECTORY keeps a picture of each page. Without a Chromium on the path, CHROMIUM names one.
"""

import functools
import http.server
import os
import shutil
import threading
import tomllib
import unittest
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BOOK = ROOT / "target" / "book"
IMAGES = DOCS / "images"
# The folder of the site on its host, which 404.html names.
FOLDER: str = tomllib.loads((DOCS / "book.toml").read_text())["output"]["html"]["site-url"]
# The menu in a frame, for browsers without scripts. The page to print holds all others, and opens a dialog.
NOT_PAGES = {"toc.html", "print.html"}
PAGES = sorted(page.name for page in BOOK.glob("*.html") if page.name not in NOT_PAGES)
WIDTHS = {"phone": 390, "desk": 1280}
SCHEMES = ("light", "dark")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SVG = "{http://www.w3.org/2000/svg}"

# Pictures whose figures stand in pages too. `make starter` compares torture.svg with what a test prints.
QUOTED = {"speed.svg": ["speed.md", "index.md"]}

LOOK = """() => {
  const outside = [];
  for (let at = document.querySelector('main'); at; at = at.parentElement) outside.push(at);
  const images = [...document.querySelectorAll('main img, main svg')];
  return {
    overflow: Math.max(...outside.map(at => at.scrollWidth - at.clientWidth)),
    undrawn: [...document.querySelectorAll('.language-mermaid')].length,
    broken: images.filter(image => !(image.naturalWidth ?? image.getBBox().width)).map(image => image.src),
    untold: images.filter(image => image.alt === '').map(image => image.src),
    links: [...document.querySelectorAll('a[href]')].map(link => link.href),
    ids: [...document.querySelectorAll('[id], [name]')].map(named => named.id || named.name),
  };
}"""

# Texts that the edge of a picture cuts, and those that another one covers.
UNREADABLE = """() => {
  const {width, height} = document.documentElement.viewBox.baseVal;
  const texts = [...document.querySelectorAll('text')].map(text => [text.textContent, text.getBBox()]);
  const isIn = at => at.x >= 4 && at.y >= 0 && at.x + at.width <= width - 4 && at.y + at.height <= height;
  const apart = (from, length, other, otherLength) => from + length <= other || other + otherLength <= from;
  const covers = (a, b) => !apart(a.x, a.width - 1, b.x, b.width - 1) && !apart(a.y, a.height - 6, b.y, b.height - 6);
  return texts
    .filter(([, at], n) => !isIn(at) || texts.slice(n + 1).some(([, other]) => covers(at, other)))
    .map(([text]) => text);
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the book, as Pages does."""

    def translate_path(self, path: str) -> str:
        return super().translate_path("/" + path.removeprefix(FOLDER) if path.startswith(FOLDER) else "/none")

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def program() -> str:
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        raise SystemExit("make site: install Chromium (on Debian, `apt install chromium`), or set CHROMIUM")
    return found


def texts(picture: Path) -> Iterator[tuple[str, str]]:
    """The text elements of a picture: their classes and their text."""
    for text in ET.parse(picture).iter(f"{SVG}text"):
        yield text.get("class", ""), "".join(text.itertext())


class Site(unittest.TestCase):
    browser: Browser
    address: str

    @classmethod
    def setUpClass(cls) -> None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(BOOK)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cls.addClassCleanup(server.server_close)
        cls.addClassCleanup(server.shutdown)
        cls.address = f"http://127.0.0.1:{server.server_port}{FOLDER}"
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        cls.browser = playwright.chromium.launch(executable_path=program())
        cls.addClassCleanup(cls.browser.close)

    def listened(self, page: Page) -> list[str]:
        """What goes wrong on a page while files load and scripts run."""
        wrong: list[str] = []

        def requested(request: Request) -> None:
            if not request.url.startswith((self.address, "data:")):
                wrong.append(f"from elsewhere: {request.url}")

        def failed(request: Request) -> None:
            # The next page may come before the icon of this one.
            if request.failure != "net::ERR_ABORTED":
                wrong.append(f"{request.failure}: {request.url}")

        def answered(response: Response) -> None:
            if response.status >= 400:
                wrong.append(f"{response.status}: {response.url}")

        def written(line: ConsoleMessage) -> None:
            if line.type == "error":
                wrong.append(f"console: {line.text}")

        page.on("request", requested)
        page.on("requestfailed", failed)
        page.on("response", answered)
        page.on("console", written)
        page.on("pageerror", lambda error: wrong.append(f"script: {error}"))
        return wrong

    def test_each_page_is_whole_at_each_width_and_scheme(self) -> None:
        assert "index.html" in PAGES
        assert len(PAGES) > 25
        shots = os.environ.get("SHOTS")
        for size, width in WIDTHS.items():
            for scheme in SCHEMES:
                page = self.browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                wrong = self.listened(page)
                for name in PAGES:
                    with self.subTest(name, size=size, scheme=scheme):
                        wrong.clear()
                        page.goto(self.address + name)
                        seen = page.evaluate(LOOK)
                        assert wrong == [], wrong
                        found = {what: seen[what] for what in ("undrawn", "broken", "untold")}
                        assert not any(found.values()), found
                        assert seen["overflow"] <= 0, "the page scrolls sideways"
                    if shots:
                        Path(shots).mkdir(parents=True, exist_ok=True)
                        page.screenshot(path=f"{shots}/{name}-{size}-{scheme}.png", full_page=size == "phone")
                page.close()

    def test_each_link_within_the_site_leads_somewhere(self) -> None:
        page = self.browser.new_page()
        anchors: dict[str, set[str]] = {}
        links: dict[str, list[str]] = {}
        for name in PAGES:
            page.goto(self.address + name)
            seen = page.evaluate(LOOK)
            anchors[name] = set(seen["ids"])
            links[name] = [link for link in seen["links"] if link.startswith(self.address)]
        anchors[""] = anchors["index.html"]
        del links["404.html"]  # its links go out from the root of the site, even to its own heading
        for name, targets in links.items():
            for target in targets:
                file, _, anchor = target.removeprefix(self.address).partition("#")
                with self.subTest(name, target=target):
                    assert (BOOK / (file or "index.html")).exists()
                    if anchor and file in anchors:
                        assert urllib.parse.unquote(anchor) in anchors[file]

    def test_no_text_of_a_picture_is_cut(self) -> None:
        page = self.browser.new_page()
        for picture in IMAGES.glob("*.svg"):
            with self.subTest(picture.name):
                page.goto(f"{self.address}images/{picture.name}")
                unreadable = page.evaluate(UNREADABLE)
                assert unreadable == [], unreadable

    def test_the_book_opens_on_the_landing_page(self) -> None:
        page = self.browser.new_page()
        page.goto(self.address)
        assert page.inner_text("main h1") == "sqs-once"
        for destination in ("getting-started.html", "comparison.html"):
            assert page.query_selector(f"main a[href='{destination}']"), destination


class Pictures(unittest.TestCase):
    def test_each_is_used_told_and_readable(self) -> None:
        pages = "".join(page.read_text() for page in [*DOCS.glob("*.md"), ROOT / "README.md"])
        for picture in IMAGES.glob("*.svg"):
            with self.subTest(picture.name):
                root = ET.parse(picture).getroot()
                assert root.findtext(f"{SVG}title")
                assert root.findtext(f"{SVG}desc")
                assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")
                assert root.find(f".//{SVG}script") is None
                assert f"images/{picture.name}" in pages, "no page shows it"

    def test_quotations_are_those_of_the_pages(self) -> None:
        for name, pages in QUOTED.items():
            for of, text in texts(IMAGES / name):
                if "figure" not in of.split():
                    continue
                for page in pages:
                    with self.subTest(name, text=text):
                        assert text in (DOCS / page).read_text(), f"{page} lacks it"


if __name__ == "__main__":
    unittest.main()
