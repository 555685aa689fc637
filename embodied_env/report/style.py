"""How pages look, on a screen, on a phone and in print; and the little script that fits figures to paper."""

from __future__ import annotations

INK = "#1b1f24"
MUTED = "#57606a"
LINE = "#d8dee4"

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#b8a000",
)
"""The palette of Okabe and Ito, which the colour-blind tell apart; its yellow is darker here, for white paper."""

PALE_ORANGE = "#f0bf55"
"""For what lies behind another line."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

STYLE = f"""
:root {{ color-scheme: light; }}
* {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; }}
body {{ margin: 0; background: #fff; color: {INK}; font: 16px/1.5 {FONT}; }}
main {{ max-width: 1080px; margin: 0 auto; padding: 28px 20px 64px; }}
h1 {{ font-size: 1.7rem; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.2rem; margin: 0 0 10px; padding-top: 22px; border-top: 1px solid {LINE}; }}
h3 {{ font-size: 0.95rem; margin: 20px 0 6px; }}
section {{ margin-top: 30px; }}
p {{ margin: 6px 0 12px; max-width: 46em; overflow-wrap: anywhere; }}
p.note, .below, figcaption {{ color: {MUTED}; font-size: 0.875rem; }}
p.warning {{ border-left: 4px solid {VERMILION}; padding: 6px 12px; background: #fdf3ec; }}
ul {{ padding-left: 1.2em; margin: 6px 0 12px; }}
li {{ margin: 2px 0; overflow-wrap: anywhere; }}
code {{ font: 0.84em/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }}
.subtitle {{ color: {MUTED}; margin: 0 0 18px; overflow-wrap: anywhere; }}
.verdict {{ display: flex; gap: 14px; align-items: center; border-radius: 10px; padding: 14px 18px; margin: 16px 0; }}
.verdict strong {{ display: block; font-size: 1.15rem; line-height: 1.3; }}
.verdict div {{ min-width: 0; overflow-wrap: anywhere; }}
.verdict .sign {{ flex: none; width: 40px; height: 40px; border-radius: 50%; color: #fff; font-size: 22px;
  line-height: 40px; text-align: center; }}
.good {{ background: #eaf6f1; border: 1px solid #9fd5c2; }} .good .sign {{ background: #00795a; }}
.bad {{ background: #fdf0e7; border: 1px solid #eeb48c; }} .bad .sign {{ background: #b34700; }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); gap: 12px; margin: 14px 0; }}
.card {{ border: 1px solid {LINE}; border-radius: 10px; padding: 12px 16px; display: flex; flex-direction: column; }}
.card .label {{ color: {MUTED}; font-size: 0.85rem; }}
.card .value {{ font-size: 1.6rem; font-weight: 650; line-height: 1.3; font-variant-numeric: tabular-nums; }}
.grid {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: 6px 22px; }}
.grid > * {{ min-width: 0; }}
.pictures {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px; }}
figure {{ margin: 0; min-width: 0; }}
figure img {{ width: 100%; height: auto; image-rendering: pixelated; border-radius: 6px; border: 1px solid {LINE}; }}
.figure {{ width: 100%; }}
.scroll {{ overflow-x: auto; margin: 8px 0 14px; background:
  linear-gradient(to right, #fff 30%, #fff0) 0 0 / 40px 100% no-repeat local,
  linear-gradient(to left, #fff 30%, #fff0) 100% 0 / 40px 100% no-repeat local,
  linear-gradient(to right, #0003, #0000) 0 0 / 10px 100% no-repeat scroll,
  linear-gradient(to left, #0003, #0000) 100% 0 / 10px 100% no-repeat scroll; }}
table {{ border-collapse: collapse; width: 100%; font-size: 0.875rem; font-variant-numeric: tabular-nums; }}
th {{ text-align: left; color: {MUTED}; font-weight: 600; white-space: nowrap; }}
th, td {{ padding: 5px 14px 5px 0; border-bottom: 1px solid {LINE}; vertical-align: top; }}
td {{ max-width: 34em; overflow-wrap: break-word; }}
td.wide {{ min-width: 13em; }} td.long {{ min-width: 15em; overflow-wrap: anywhere; }}
.number {{ text-align: right; white-space: nowrap; }}
dl {{ display: grid; grid-template-columns: minmax(7.5em, max-content) minmax(0, 1fr); gap: 4px 18px; margin: 8px 0;
  font-size: 0.92rem; }}
dt {{ color: {MUTED}; }} dd {{ margin: 0; overflow-wrap: anywhere; }}
.bar {{ display: block; position: relative; height: 12px; min-width: 120px; margin-top: 5px; background: #eef1f4;
  border-radius: 3px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
.bar b {{ position: absolute; inset: 0 auto 0 0; background: {BLUE}; border-radius: 3px; }}
.bar i {{ position: absolute; top: 3px; height: 6px; background: {ORANGE}; border: 1px solid #7a5200;
  border-radius: 2px; opacity: 0.9; }}
footer {{ margin-top: 40px; color: {MUTED}; font-size: 0.85rem; border-top: 1px solid {LINE}; padding-top: 14px; }}
@media (max-width: 480px) {{
  main {{ padding: 18px 16px 40px; }}
  h1 {{ font-size: 1.35rem; }}
  dl {{ grid-template-columns: 1fr; gap: 0; }} dd {{ margin-bottom: 8px; }}
  .cards {{ grid-template-columns: 1fr; }}
}}
@page {{ size: A4; margin: 14mm; }}
@media print {{
  body {{ font-size: 10.5pt; }}
  main {{ width: 680px; max-width: 680px; padding: 0; margin: 0; }}
  .grid {{ grid-template-columns: 1fr 1fr; }}
  .cards {{ grid-template-columns: repeat(3, 1fr); }}
  .card .value {{ font-size: 1.25rem; }}
  .verdict, .card, .figure, figure, tr {{ break-inside: avoid; }}
  h2, h3 {{ break-after: avoid; }}
  section {{ margin-top: 14px; }}
  .scroll {{ overflow: visible; background: none; }}
  td.wide, td.long {{ min-width: 0; }}
  table {{ font-size: 8.5pt; }} th, th.number {{ white-space: normal; }} th, td {{ padding-right: 8px; }}
  .verdict, .bad, .good, .sign, p.warning {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
}}
"""

SCRIPT = """
(function () {
  function each(change) {
    if (!window.Plotly) return;
    document.querySelectorAll('.js-plotly-plot').forEach(function (figure) {
      Plotly.relayout(figure, change(figure));
    });
  }
  addEventListener('beforeprint', function () {
    var main = document.querySelector('main');
    main.style.width = '680px';
    document.querySelectorAll('.grid').forEach(function (grid) { grid.style.gridTemplateColumns = '1fr 1fr'; });
    each(function (figure) { return {width: figure.parentElement.clientWidth, autosize: false}; });
  });
  addEventListener('afterprint', function () {
    document.querySelector('main').style.width = '';
    document.querySelectorAll('.grid').forEach(function (grid) { grid.style.gridTemplateColumns = ''; });
    each(function () { return {width: null, autosize: true}; });
  });
})();
"""
"""Before printing, figures get the width of the paper, which they cannot know by themselves."""
