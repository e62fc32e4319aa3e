// Tables that are wider than the window are scrolled by the keyboard too. The theme wraps them after a page was drawn.
document$.subscribe(() => setTimeout(() => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (wrap.scrollWidth > wrap.clientWidth) {
      wrap.tabIndex = 0;
      wrap.setAttribute("role", "region");
      wrap.setAttribute("aria-label", "table");
    }
  }
}));
