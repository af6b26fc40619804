"""How fast the report is in a browser: charts in view drawn, and a move of the calculator answered.

python benchmarks/page.py [results/report.html]
"""

import sys
from pathlib import Path
from statistics import median

from playwright.sync_api import sync_playwright

WHEN_DRAWN = """addEventListener("DOMContentLoaded", () => {
  const inView = (place) => {
    const box = place.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  };
  const look = () => {
    const places = [...document.querySelectorAll("[data-chart]")].filter(inView);
    const drawn = places.every((place) => place.querySelector("svg path"));
    if (places.length > 0 && drawn) window.drawnAfter = performance.now();
    else setTimeout(look, 5);
  };
  look();
})"""
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


def main(page: str = "results/report.html") -> None:
    address = Path(page).resolve().as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        drawn = []
        for _ in range(5):
            tab = browser.new_page()
            tab.add_init_script(WHEN_DRAWN)
            tab.goto(address)
            drawn.append(tab.wait_for_function("() => window.drawnAfter").json_value())
            tab.close()
        tab = browser.new_page()
        tab.goto(f"{address}#what-if?A=deepseek-v3&B=palm-540b")
        tab.wait_for_selector("#calculator-table tbody tr")
        moves = tab.evaluate(MOVES)
        browser.close()
    print(f"charts in view drawn after {median(drawn):,.0f} ms (at best {min(drawn):,.0f} ms)")
    print(f"a move is answered after {median(moves):,.0f} ms (at worst {max(moves):,.0f} ms)")


if __name__ == "__main__":
    main(*sys.argv[1:])
