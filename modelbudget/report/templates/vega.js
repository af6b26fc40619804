// Runs Vega before the first chart is drawn, and draws each chart in tasks of its own.
"use strict";

const embed = (() => {
  let runs, isPrinted;
  const started = () => (runs ??= runPacked("vega"));
  // The page answers its reader in between; a print does not wait.
  const pause = () => isPrinted || new Promise((done) => setTimeout(done));
  window.addEventListener("beforeprint", () => (isPrinted = true));
  window.addEventListener("afterprint", () => (isPrinted = false));

  const idle = window.requestIdleCallback ?? setTimeout;
  const early = () => isPrinted || started(); // a print has what its charts start
  story.near(document.getElementById("appendix")).then(() => idle(early));

  return async (place, spec, options) => {
    await started();
    await pause();
    const { spec: compiled } = vegaLite.compile(spec);
    await pause();
    return vegaEmbed(place, compiled, options);
  };
})();
