"use strict";
/* Buttons that copy a command, or a table as it is shown (cells separated by tabs, for a spreadsheet). */
(() => {
  const live = document.getElementById("live");

  // What is hidden, such as the score that is not chosen, is no part of innerText.
  function rows(table) {
    const cells = (row) => [...row.cells].filter((cell) => !cell.classList.contains("drawn"));
    const words = (cell) => cell.innerText.replace(/\s+/g, " ").trim();
    return [...table.rows].map((row) => cells(row).map(words).join("\t")).join("\n");
  }

  // A page without the clipboard's permission still has the older way.
  async function put(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  function button(what, text) {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "copy";
    made.textContent = "copy";
    made.setAttribute("aria-label", `Copy ${what}`);
    made.addEventListener("click", async () => {
      await put(text());
      made.focus();
      made.textContent = "copied";
      live.textContent = `Copied ${what}`;
    });
    made.addEventListener("blur", () => (made.textContent = "copy"));
    return made;
  }

  document.querySelectorAll(".commands code").forEach((command, i) => {
    const text = command.textContent.replace(/\s+/g, " ").trim();
    command.append(button(`command ${i + 1}`, () => text));
  });
  for (const table of document.querySelectorAll("table.results")) {
    const place = table.closest(".scroll");
    place.after(button(`the table ${place.getAttribute("aria-label")}`, () => rows(table)));
  }
})();
