// Starts Vega when the first chart is drawn: its script is embedded compressed, a third of its size.
"use strict";

let vegaRuns;

async function embed(place, spec, options) {
  vegaRuns ??= unpack("vega").then((text) => {
    const script = document.createElement("script"); // the page's policy has its hash
    script.textContent = text;
    document.head.append(script);
    script.remove(); // it has run
  });
  await vegaRuns;
  return vegaEmbed(place, spec, options);
}
