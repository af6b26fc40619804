// Runs Vega before the first chart is drawn, and draws each chart in tasks of its own.
"use strict";

const embed = (() => {
  let runs, tooltips, isPrinted;
  const started = () => (runs ??= runPacked("vega").then(() => {
    tooltips = new vega.Handler({ disableDefaultStyle: true });
  }));
  // The page answers its reader in between; a print does not wait.
  const pause = () => isPrinted || new Promise((done) => setTimeout(done));
  window.addEventListener("beforeprint", () => (isPrinted = true));
  window.addEventListener("afterprint", () => (isPrinted = false));

  // An interpreter evaluates expressions: the page's policy forbids to compile them.
  return async (place, spec) => {
    await started();
    await pause();
    const dataflow = vega.parse(spec, {}, { ast: true });
    await pause();
    const view = new vega.View(dataflow, { renderer: "svg", expr: vega.expressionInterpreter, tooltip: tooltips.call, hover: true });
    await pause();
    await view.runAsync(); // computes the marks; without a place nothing is drawn
    await pause();
    place.replaceChildren();
    return view.initialize(place).runAsync();
  };
})();
