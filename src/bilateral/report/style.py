"""How the page looks: light and dark, wide and narrow, on paper. Text has a contrast of 4.5 to 1 or more."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--bg:#fbfaf8;--card:#fff;--ink:#1c1b1a;--soft:#5c5853;--line:#dedad3;
--ok:#146c3f;--warn:#8a4d00;--bad:#a8211a;--okbg:#e6f4ec;--warnbg:#fdf1de;--badbg:#fcebe9;--link:#1d4fb8;
--a:#2459c9;--b:#c26a00;--c:#14806f;--d:#8a3fa8;--e:#a03a52;--f:#6b6762}
@media(prefers-color-scheme:dark){:root{--bg:#161514;--card:#1f1e1c;--ink:#eceae6;--soft:#b0aaa2;--line:#3a3835;
--ok:#6bd09c;--warn:#eab060;--bad:#f59a92;--okbg:#15301f;--warnbg:#33260f;--badbg:#3f1d1a;--link:#9db8ff;
--a:#8aacff;--b:#f0a850;--c:#5fd0bd;--d:#d29be8;--e:#f08fa5;--f:#a9a49d}}
*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:1060px;margin:0 auto;padding:28px 20px 72px}
h1{font-size:1.7rem;line-height:1.25;margin:.15em 0 .3em}h2{font-size:1.2rem;margin:2.3em 0 .7em}
h3{font-size:1rem;margin:0 0 .4em}p{margin:.4em 0}a{color:var(--link)}code{font-size:.92em}
.meta,.note{color:var(--soft);font-size:.9rem}.meta{margin:0}.note{margin:.5em 0}
.skip{position:absolute;left:-999px}.skip:focus{left:8px;top:8px;background:var(--card);padding:8px}
:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.grid{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(230px,100%),1fr))}
.grid.two{grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr))}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px;min-width:0}
.card p{font-size:.94rem;color:var(--soft)}.card .tag+p{margin-top:.6em}
.grid.answers{grid-template-columns:repeat(auto-fit,minmax(min(400px,100%),1fr))}.scroll+.scroll{margin-top:1.6em}
.tag{display:inline-block;border-radius:14px;padding:.1em .75em;font-weight:600;font-size:.88rem;border:1px solid}
.ok{color:var(--ok);background:var(--okbg)}.warn{color:var(--warn);background:var(--warnbg)}
.bad{color:var(--bad);background:var(--badbg)}.tag.bad{border-width:2px}
.num{font-size:1.55rem;font-weight:650;font-variant-numeric:tabular-nums;line-height:1.2}
.alarm{border:3px solid var(--bad);background:var(--badbg);border-radius:10px;padding:12px 18px;margin:18px 0}
table{border-collapse:collapse;width:100%;font-size:.93rem}caption{text-align:left;color:var(--soft);font-size:.88rem;
padding:0 0 .4em}th,td{text-align:left;padding:.5em .8em .5em 0;border-bottom:1px solid var(--line);
vertical-align:top;font-weight:400}thead th{color:var(--soft);font-weight:600}tbody th{font-weight:600}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}.what{display:block;color:var(--soft);
font-size:.86rem}.scroll{overflow-x:auto}details{margin:.7em 0}
details>.note{scroll-margin-top:4em}summary{cursor:pointer;font-weight:600}
figure{margin:0}figcaption{color:var(--soft);font-size:.88rem;margin-top:.4em}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font:12px system-ui,sans-serif}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;margin:.2em 0 .6em;padding:0;list-style:none;font-size:.9rem}
.key svg{width:26px;height:12px;display:inline-block;vertical-align:middle;margin-right:6px}
.bars{display:grid;grid-template-columns:minmax(70px,max-content) 1fr max-content;gap:6px 12px;align-items:center;
font-size:.92rem}.bars .bar{display:flex;height:18px;border-radius:4px;overflow:hidden;background:var(--line)}
.bars .bar span{display:block;height:100%;min-width:1px}.bars .v{font-variant-numeric:tabular-nums;text-align:right}
.tag.plain{color:var(--soft)}.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.net{list-style:none;display:flex;flex-wrap:wrap;gap:10px 26px;margin:.4em 0 .8em;padding:0}
.layer{position:relative;border:1px solid var(--line);border-left:6px solid var(--f);border-radius:8px;
padding:6px 12px 6px 10px;font-size:.9rem;min-width:0;overflow-wrap:anywhere}
.layer+.layer::before{content:"→";position:absolute;left:-26px;top:50%;transform:translateY(-50%);color:var(--soft)}
.layer.sealed{border-left-color:var(--c)}.layer.disguised{border-left-color:var(--d);border-left-style:double}
.layer.partly{border-left-color:var(--b);border-left-style:dashed}
.layer.join{border-style:dashed;border-left-width:1px}
.swatch{display:inline-block;width:0;height:12px;margin:0 8px 0 4px;vertical-align:middle;
border-left:6px solid var(--f)}
.swatch.sealed{border-color:var(--c)}.swatch.disguised{border-color:var(--d);border-left-style:double}
.swatch.partly{border-color:var(--b);border-left-style:dashed}.pictures img{display:block;margin:.8em 0}
.bars .l{overflow-wrap:anywhere}img{max-width:100%;height:auto}pre{white-space:pre-wrap;overflow-wrap:anywhere;
font-size:.86rem;margin:0}ul{padding-left:1.2em}
@media(max-width:540px){main{padding:18px 14px 56px}h1{font-size:1.4rem}svg text{font-size:25px}
.bars{grid-template-columns:1fr max-content;grid-auto-flow:dense}.bars .bar{grid-column:1/-1;margin-bottom:6px}
.bars .l{grid-column:1}.bars .v{grid-column:2}th,td{padding-right:.5em}}
@media print{:root{--bg:#fff;--card:#fff}body{font-size:11px}main{max-width:none;padding:0}.card,figure,tr{
break-inside:avoid}.skip{display:none}a{color:inherit}}
"""
