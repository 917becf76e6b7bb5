"use strict";
/* What every page has: the switch between light and dark, the one between the two scores, and what is drawn again
   after the second one or in a window of another width. */
const Controls = (() => {
  const root = document.documentElement;
  const stored = {
    get: () => {
      try {
        return localStorage.getItem("fedmes-theme");
      } catch {
        return null;
      }
    },
    set: (value) => {
      try {
        localStorage.setItem("fedmes-theme", value);
      } catch {
        /* a page without storage forgets */
      }
    },
  };
  const score = () => root.dataset.score;
  const redraws = [];

  // Light, dark, or as the system has it.
  const themes = ["auto", "light", "dark"];
  const themeButton = document.getElementById("theme");
  function theme(name) {
    if (name === "auto") delete root.dataset.theme;
    else root.dataset.theme = name;
    themeButton.querySelector(".wide").textContent = name;
  }
  theme(themes.includes(stored.get()) ? stored.get() : "auto");
  themeButton.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme ?? "auto") + 1) % themes.length];
    stored.set(next);
    theme(next);
  });

  // With or without a task id.
  const scoreButtons = [...document.querySelectorAll(".switch button")];
  for (const button of scoreButtons) {
    button.addEventListener("click", () => {
      root.dataset.score = button.value;
      scoreButtons.forEach((one) => one.setAttribute("aria-pressed", one === button));
      redraws.forEach((redraw) => redraw());
    });
  }

  let width = root.clientWidth,
    waiting = 0;
  addEventListener("resize", () => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => redraws.forEach((redraw) => redraw()));
  });

  return { score, redraws };
})();
