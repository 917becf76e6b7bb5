// The tables of leaderboard.md: a click on a head sorts by its column, the best first; another
// turns it round.

function sortable(table) {
  table.style.whiteSpace = "nowrap"; // a wide table scrolls
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const arrow = document.createElement("span");
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    button.style.cssText = "font: inherit; color: inherit; background: none; border: 0; cursor: pointer";
    button.title = "sort";
    head.append(button);
    const low = !head.textContent.match(/^(Acc|final|split|fcil)/); // where low comes first
    button.onclick = () => {
      const before = head.getAttribute("aria-sort");
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      const rising = before ? before === "descending" : low;
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      arrow.textContent = rising ? " ▴" : " ▾";
      button.append(arrow);
      body.append(...[...body.rows].sort((a, b) => order(a.cells[column], b.cells[column], rising)));
    };
  });
}

// Numbers before words, whichever way they are sorted.
function order(a, b, rising) {
  const [x, y] = [a, b].map((cell) => parseFloat(cell.textContent));
  if (isNaN(x) && isNaN(y)) return a.textContent.localeCompare(b.textContent) * (rising ? 1 : -1);
  if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
  return rising ? x - y : y - x;
}

if (document.getElementById("leaderboard")) document.querySelectorAll("table").forEach(sortable);
