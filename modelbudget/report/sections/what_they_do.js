// Saves the picture of act 1.
"use strict";

story.entries["what-they-do"] = (section, { picture }) => {
  const [WIDE, HIGH] = [1200, 630];
  const file = new Blob([picture], { type: "image/svg+xml" });
  section.querySelector(".files").addEventListener("click", async ({ target }) => {
    const kind = target.dataset.picture;
    if (kind === "svg") story.save(file, "what-parameters-do.svg");
    if (kind !== "png") return;
    const image = new Image();
    image.src = `data:image/svg+xml,${encodeURIComponent(picture)}`;
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: WIDE, height: HIGH });
    canvas.getContext("2d").drawImage(image, 0, 0);
    canvas.toBlob((blob) => story.save(blob, "what-parameters-do.png"), "image/png");
  });
};
