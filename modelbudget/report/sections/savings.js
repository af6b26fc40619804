// Shows the changes of act 5 for the model that a reader chooses, as the page has them for the first.

story.entries["what-to-do"] = (section, models) => {
  const places = ["h2 a", ".finding", "table", ".whose"].map((one) => section.querySelector(one));
  const all = [places.map((place) => place.innerHTML), ...models];
  const select = section.querySelector("select");
  select.addEventListener("change", () => places.forEach((place, i) => (place.innerHTML = all[select.selectedIndex][i])));
};
