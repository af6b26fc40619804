// Saves the picture of act 1.

story.entries["what-they-do"] = (section, { picture }) =>
  section.querySelector(".stacks").after(story.files("Save the picture ", "picture", "what-parameters-do", () => picture));
