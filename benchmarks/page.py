"""How large the report is, and how fast in a browser: first paint, a section, the calculator.

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
  const field = document.querySelector('[data-field="n_vocab"]');
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


WATCH = """
  window.longTasks = [];
  const watch = (list) => window.longTasks.push(...list.getEntries().map((task) => task.duration));
  new PerformanceObserver(watch).observe({ type: "longtask", buffered: true });
"""
SLOWER = 4
"""How much slower a phone's CPU is than this one."""


def longest_tasks(browser, address: str, section: str) -> tuple[float, float]:
    """Return the milliseconds of the longest task while the page opens, and then a section.

    On a slower CPU. It is watched from within the page: a question from outside is a task itself.
    """
    tab = browser.new_page()
    session = tab.context.new_cdp_session(tab)
    session.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    tab.add_init_script(WATCH)
    tab.goto(address)
    tab.wait_for_timeout(3_000)
    opening = tab.evaluate("Math.max(0, ...window.longTasks.splice(0))")
    tab.evaluate("(name) => { location.hash = name; }", section)
    tab.wait_for_timeout(5_000)
    drawing = tab.evaluate("Math.max(0, ...window.longTasks)")
    tab.close()
    return opening, drawing


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
        tab.goto(f"{address}#what-if?model=deepseek-v3")
        tab.wait_for_selector("#calculator-table tbody tr", state="attached")
        moves = tab.evaluate(MOVES)
        n_element = tab.evaluate("document.querySelectorAll('*').length")
        tasks = [longest_tasks(browser, address, section) for _ in range(5)]
        browser.close()
    print(f"{Path(page).stat().st_size:,} bytes, {n_element:,} elements")
    page_opens, section_opens = map(median, zip(*tasks, strict=True))
    print(
        f"longest task at {SLOWER} x slower CPU: {page_opens:,.0f} ms while the page opens, "
        f"{section_opens:,.0f} ms while {section} does"
    )
    print(f"first paint, of the acts, after {median(painted):,.0f} ms")
    print(f"{section} opened and drawn after {median(opened):,.0f} ms")
    print(f"a move is answered after {median(moves):,.0f} ms (at worst {max(moves):,.0f} ms)")


if __name__ == "__main__":
    main(*sys.argv[1:])
