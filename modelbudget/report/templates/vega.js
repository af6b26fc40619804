// Starts Vega when the first chart is drawn.
"use strict";

let vegaRuns;

async function embed(place, spec, options) {
  vegaRuns ??= runPacked("vega");
  await vegaRuns;
  return vegaEmbed(place, spec, options);
}
