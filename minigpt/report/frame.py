"""The page around a report: its HTML frame and its style sheet."""

STYLE = """
:root { color-scheme: light dark; --ink: #1f2733; --soft: #66707f; --paper: #fff; --card: #f5f7fa; --line: #e3e7ed;
  --train: #2f6fde; --val: #e2571e; --base: #1a9a6c; --rate: #7a869a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #98a3b3; --paper: #14181f; --card: #1d232c;
  --line: #2d3541; --train: #6ea1ff; --val: #ff8a57; --base: #4fcf9d; --rate: #93a0b5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 32px 20px 64px; max-width: 960px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 18px; margin: 0 0 10px; }
h3 { font-size: 13px; font-weight: 600; color: var(--soft); margin: 14px 0 4px; }
header p { color: var(--soft); margin: 4px 0 20px; overflow-wrap: anywhere; }
section { margin-top: 34px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 10px; }
.figures div { background: var(--card); border-radius: 10px; padding: 12px 14px; display: flex;
  flex-direction: column; }
.figures b { font-size: 22px; line-height: 1.3; white-space: nowrap; font-variant-numeric: tabular-nums; }
.figures span { color: var(--soft); font-size: 13px; } .figures small { color: var(--soft); font-size: 12px; }
svg { display: block; width: 100%; height: auto; }
figure { margin: 0; } figcaption { font-size: 13px; color: var(--soft); }
.wide { overflow-x: auto; } .wide > svg { min-width: 640px; }
.small { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 16px; margin-top: 16px; }
pre { background: var(--card); border-radius: 8px; padding: 10px 14px; margin: 0; overflow-x: auto;
  font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.sample { white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
td { border-bottom: 1px solid var(--line); padding: 4px 12px 4px 0; vertical-align: top; overflow-wrap: anywhere; }
td:first-child { color: var(--soft); white-space: nowrap; width: 1%; padding-right: 24px; }
td:nth-child(2):not(:last-child) { white-space: nowrap; }
.groups td:first-child { width: 60%; } .groups h3 { margin-top: 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 0 28px; }
.own td { font-weight: 650; color: var(--ink); }
.groups { columns: 280px; column-gap: 28px; }
.groups > div { break-inside: avoid; padding-bottom: 18px; }
.note { color: var(--soft); font-size: 13px; margin: 0 0 10px; }
details { margin-top: 14px; } summary { cursor: pointer; color: var(--soft); }
"""

# No script is let in, whatever a sample or a setting holds.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{name} · minigpt</title>
<style>{style}</style>
</head>
<body>
<header><h1>{name}</h1><p>{summary}</p></header>
<div class="figures">{figures}</div>
{body}
</body>
</html>
"""
