// A little Markdown as nodes: code, lists, headings, paragraphs; bold, italics, code in a line. All text stays text.
import { el } from "./dom.js";

const SPANS = /`([^`\n]+)`|\*\*(?=\S)([^\n]*?[^\s*]\*?)\*\*(?!\*)|\*(?=\S)([^*\n]*?[^\s*])\*|\b_(?=\S)([^_\n]*?[^\s_])_\b/;
const ITEM = /^\s*(?:[-*+]|(\d{1,9})[.)])\s+(.*)/;

export function markdown(text) {
  return text.trimStart().split(/^```.*\n?/m).flatMap((part, place) => {
    if (place % 2) return [el("pre", {}, el("code", {}, part.replace(/\n$/, "")))]; // between fences, or after the last
    return part.split(/\n[ \t]*\n/).flatMap((block) => (block.trim() ? blocks(block) : []));
  });
}

// Lines that follow each other and are of one kind.
function blocks(text) {
  const nodes = [];
  let list = null,
    lines = [];
  const end = () => {
    if (lines.length) nodes.push(el("p", {}, ...inline(lines.join("\n"))));
    lines = [];
  };
  for (const line of text.replace(/^\n+|\n+$/g, "").split("\n")) {
    const [, number, item] = ITEM.exec(line) || [],
      heading = /^#{1,6}\s+(.*)/.exec(line);
    const kind = item === undefined ? null : number ? "ol" : "ul";
    if (kind || heading) end();
    if (kind) {
      if (list?.localName !== kind) nodes.push((list = el(kind, number ? { start: Number(number) } : {})));
      list.append(el("li", {}, ...inline(item)));
      continue;
    }
    list = null;
    if (heading) nodes.push(el("p", {}, el("strong", {}, ...inline(heading[1]))));
    else lines.push(line);
  }
  end();
  return nodes;
}

function inline(text) {
  const nodes = [];
  for (let found; (found = SPANS.exec(text)); text = text.slice(found.index + found[0].length)) {
    const [, code, strong, ...italics] = found;
    nodes.push(text.slice(0, found.index));
    if (code) nodes.push(el("code", {}, code));
    else nodes.push(el(strong ? "strong" : "em", {}, ...inline(strong || italics[0] || italics[1])));
  }
  return [...nodes, text];
}
