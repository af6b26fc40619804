// Saves the picture of act 1.
"use strict";

story.entries["what-they-do"] = (section, { picture }) => {
  const [WIDE, HIGH] = [1200, 630];
  section.querySelector(".files").addEventListener("click", async ({ target }) => {
    const kind = target.dataset.picture;
    if (kind === "svg") story.save(story.svg(picture), "what-parameters-do.svg");
    if (kind === "png") story.save(await story.png(picture, WIDE, HIGH), "what-parameters-do.png");
  });
};
