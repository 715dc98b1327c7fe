"""The style of reports: on screens, light or dark, and on paper. Text alone."""

STYLE = """
:root{--ink:#1d2430;--soft:#5b6675;--line:#dfe4ea;--ground:#fff;--panel:#f6f8fa;--good:#18794e;--bad:#b42318;
--warn:#9a6700;--c0:#2563a8;--c1:#c2570c;--c2:#18794e;--c3:#8a3ffc;--c4:#a8325e;--c5:#5b6675}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa6b5;--line:#303946;--ground:#12161c;--panel:#1a2029;
--good:#4cc38a;--bad:#ff8a7a;--warn:#e2b340;--c0:#70a9e8;--c1:#f0a05a;--c2:#4cc38a;--c3:#b795ff;--c4:#ee86ae;
--c5:#9aa6b5}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:62rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2.5rem 0 .75rem;padding-bottom:.3rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1.25rem 0 .5rem}
p{margin:.4rem 0;overflow-wrap:anywhere}
header p{color:var(--soft);max-width:50rem}
.state{display:inline-block;border:1px solid;border-radius:1rem;padding:.05rem .7rem;font-size:.85rem;font-weight:600;
margin:0 0 .6rem}
.succeeded{color:var(--good)}.failed{color:var(--bad)}.stopped,.open{color:var(--warn)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(7.5rem,1fr));gap:.75rem;margin:1.5rem 0 0}
.tile{background:var(--panel);border:1px solid var(--line);border-radius:.5rem;padding:.7rem .9rem}
.tile b{display:block;font-size:1.2rem;font-variant-numeric:tabular-nums;line-height:1.3;overflow-wrap:anywhere}
.tile span{color:var(--soft);font-size:.85rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;min-width:45%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600;vertical-align:bottom}
th.number,td.number{text-align:right}
td.number{white-space:nowrap}

dl{display:grid;grid-template-columns:minmax(9rem,max-content) 1fr;gap:.25rem 1.25rem;margin:.5rem 0;font-size:.9rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
code,pre{font:.85em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:var(--panel);border:1px solid var(--line);border-radius:.5rem;padding:.8rem 1rem;overflow-x:auto}
summary{cursor:pointer;color:var(--soft)}
figure{margin:1.25rem 0 0}
figcaption{font-size:.95rem}
svg{display:block;width:100%;height:auto}
svg.spark{width:6rem;height:1.5rem}
svg text{font:11px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--soft)}
svg text.y{text-anchor:end}svg text.x{text-anchor:middle}
svg .grid{stroke:var(--line)}svg line.stage{stroke:var(--soft);stroke-dasharray:2 3}
.line,.dashed{fill:none;stroke-width:1.8;stroke-linejoin:round}
.dashed{stroke-dasharray:6 4}
.line.c0,.dashed.c0{stroke:var(--c0)}.line.c1,.dashed.c1{stroke:var(--c1)}.line.c2,.dashed.c2{stroke:var(--c2)}
.line.c3,.dashed.c3{stroke:var(--c3)}.line.c4,.dashed.c4{stroke:var(--c4)}.line.c5,.dashed.c5{stroke:var(--c5)}
.dot.c0{fill:var(--c0)}.dot.c1{fill:var(--c1)}.dot.c2{fill:var(--c2)}.dot.c3{fill:var(--c3)}.dot.c4{fill:var(--c4)}
.dot.c5{fill:var(--c5)}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;color:var(--soft);font-size:.85rem;margin:.1rem 0 0 3.6rem}
.key{display:inline-block;width:1.4rem;margin-right:.4rem;vertical-align:middle;border-top:3px solid}
.key.dashed{border-top-style:dashed}.key.dots{width:.5rem;height:.5rem;border:0;border-radius:50%;background:currentColor}
.key.c0{color:var(--c0)}.key.c1{color:var(--c1)}.key.c2{color:var(--c2)}.key.c3{color:var(--c3)}.key.c4{color:var(--c4)}
.key.c5{color:var(--c5)}
blockquote{margin:.75rem 0;padding:.5rem .9rem;border-left:3px solid var(--line);background:var(--panel)}
mark{background:none;color:var(--c1);font-weight:700}
.right{color:var(--good);font-weight:600}
small,.note{color:var(--soft);font-size:.85rem}
a{color:var(--c0)}
@media(max-width:40rem){dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}.legend{margin-left:0}}
@media print{main{max-width:none;padding:0}h2{break-after:avoid}figure,.tile,blockquote,tr{break-inside:avoid}}
"""
