"""How fast the report is in a browser: first paint, a section opened, a move of the calculator.

python benchmarks/page.py [results/report.html [section]]
"""

import sys
from pathlib import Path
from statistics import median

from playwright.sync_api import sync_playwright

OPEN = """async (name) => {
  const section = document.getElementById(name);
  const before = performance.now();
  location.hash = name;
  const drawn = () => {
    const all = [...section.querySelectorAll("[data-chart]")];
    const places = all.filter((place) => place.checkVisibility());
    return places.length > 0 && places.every((place) => place.querySelector("svg path"));
  };
  while (!drawn()) await new Promise((done) => setTimeout(done, 5));
  return performance.now() - before;
}"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
MOVES = """async () => {
  const field = document.querySelector('[data-side="A"][data-field="n_vocab"]');
  const calculator = document.getElementById("calculator");
  const times = [];
  for (let i = 0; i < 40; i += 1) {
    const answered = new Promise((done) => {
      calculator.addEventListener("answered", done, { once: true });
    });
    field.value = 100000 + i;
    const before = performance.now();
    field.dispatchEvent(new Event("input", { bubbles: true }));
    await answered;
    times.push(performance.now() - before);
  }
  return times;
}"""


def main(page: str = "results/report.html", section: str = "training-budget") -> None:
    address = Path(page).resolve().as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        painted, opened = [], []
        for _ in range(5):
            tab = browser.new_page()
            tab.goto(address)
            painted.append(tab.wait_for_function(f"() => {PAINT}").json_value())
            opened.append(tab.evaluate(OPEN, section))
            tab.close()
        tab = browser.new_page()
        tab.goto(f"{address}#what-if?A=deepseek-v3&B=palm-540b")
        tab.wait_for_selector("#calculator-table tbody tr")
        moves = tab.evaluate(MOVES)
        browser.close()
    print(f"first paint, of the acts, after {median(painted):,.0f} ms")
    print(f"{section} opened and drawn after {median(opened):,.0f} ms")
    print(f"a move is answered after {median(moves):,.0f} ms (at worst {max(moves):,.0f} ms)")


if __name__ == "__main__":
    main(*sys.argv[1:])
