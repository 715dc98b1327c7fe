"""Languages that a corpus may name: those of ISO 639-1, and those of three letters that have a Wikipedia.

Sentences are split by rules of the language or of a related one where there are such (``sentences``), else by the marks
that end sentences in any script. Nothing is detected here.
"""

from __future__ import annotations

from bert_trainer.errors import InputError

_TWO_LETTERS = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el "
    "en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu "
    "ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mo mr ms mt my "
    "na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm "
    "sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh "
    "zu"
)
_THREE_LETTERS = (
    "abs ace ady aeb aln als alt ami ang ann anp arc arn arq ary arz ast atj avk awa azb ban bar bat bbc bcc bcl "
    "bdr bew bgn bjn blk bol bpy bqi btm bug bxr cbk cdo ceb cho chr chy ckb crh crk csb dag dga din diq dsb dtp "
    "dty egl eml ext fat fit fiu fon frc frp frr fur gaa gag gan gcr glk gom gor got gpe gsw guc gur guw hak haw "
    "hif hrx hsb hyw iba ilo inh jam jut kaa kab kbd kbp kcg kge khw kiu kjp knc koi krc krl ksh kum kus lad lbe "
    "lez lfn lij liv lki lld lmo lrc ltg luz lzh lzz mad mai map mdf mhr min mni mnw mos mrj mus mwl myv mzn nah "
    "nan nap nds new nia nov nqo nrm nso nup olo pag pam pap pcd pcm pdc pdt pfl pih pms pnb pnt pwn qug rgn rki "
    "rmy roa rsk rue rup ruq sah sat scn sco sdc sdh ses sgs shi shn shy skr sli smn srn stq sty syl szl szy tay "
    "tcy tdd tet tig tly tok tpi trv tum tyv udm vec vep vls vmf vot vro war wuu xal xmf yue zea zgh zza"
)
ALLOWED = (*_TWO_LETTERS.split(), *_THREE_LETTERS.split())


def check_language(code: str) -> None:
    """Refuse a code that stands for no language. code: as ``pt`` or ``pt-BR``, of which the region is not looked at.

    Raises:
        InputError: names all that are allowed.
    """
    if code.partition("-")[0] not in ALLOWED:
        raise InputError(
            f"language: got {code!r}; allowed, with or without a region as in pt-BR: {' '.join(ALLOWED)}",
            hint="take a related language where yours is missing; it only decides how sentences are split",
        )
