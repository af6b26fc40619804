"""What a reader and a browser see of a page."""

from html.parser import HTMLParser

from axe_playwright_python.sync_playwright import Axe


class Text(HTMLParser):
    """The words that a reader sees, and every address that the page names."""

    def __init__(self, page: str):
        super().__init__()
        self.words, self.addresses, self.tags, self.hidden = [], [], [], 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.hidden += tag in ("script", "style")
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        self.hidden -= tag in ("script", "style")

    def handle_data(self, data):
        if not self.hidden:
            self.words.append(data)

    def __str__(self) -> str:
        return " ".join(" ".join(self.words).split())


DRAWN = "place => place.querySelector('svg path') !== null"


def unfold(tab):
    """Open every section and what is folded in it."""
    tab.evaluate("for (const one of document.querySelectorAll('details.fold')) one.open = true")
    return tab


STATE = """() => [scrollY, document.documentElement.scrollHeight, document.querySelectorAll(
  "[data-chart] svg").length].join()"""


def settle(tab) -> None:
    """Wait until a page has neither scrolled nor grown nor drawn a chart for 0.3 s."""
    before, n_equal = "", 0
    while n_equal < 6:
        tab.wait_for_timeout(50)
        now = tab.evaluate(STATE)
        before, n_equal = now, n_equal + 1 if now == before else 0


def start(tab, place: str) -> None:
    """Scroll to what starts when a reader comes near, and wait until its controls are there."""
    tab.locator(place).first.scroll_into_view_if_needed()
    tab.wait_for_selector("#calculator-answer *")


def scroll_and_wait(tab) -> list:
    """Open every section, scroll to each chart in turn and wait until it is drawn."""
    unfold(tab)
    places = tab.query_selector_all("[data-chart]")
    for place in places:
        place.scroll_into_view_if_needed()
        for _ in range(200):
            if place.evaluate(DRAWN):
                break
            tab.wait_for_timeout(25)
    return places


def violations(tab, within: str | None = None) -> list[tuple[str, list[str]]]:
    """Return the rules of axe-core that the page breaks, each with the elements that break it.

    `within`: the selector of a part of the page, which alone is looked at.
    """
    found = Axe().run(tab, context=within).response["violations"]
    return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]
