"""The words our tasks and the grammar of `toy-ioi` are made of: plain data, no torch.

Every name, place, object, noun, attractor, preposition, verb and event is one GPT-2 token when it follows a
space (" Mary", " keys"), and so is every century (" 17"); a two-digit year is one token right after its
century ("1732" is " 17" + "32") unless the year stands in `WHOLE_YEARS`, which GPT-2 keeps as one token or
cuts elsewhere. The tests check this against GPT-2's own vocabulary.

Written for this package. Objects begin with a consonant so that "a {OBJECT}" is English.
"""

from __future__ import annotations

from typing import NamedTuple


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES: tuple[str, ...] = _words(
    """Mary John Tom James Dan Martin Amy Scott Laura Michelle Kevin Anna Paul Mark Simon Peter Robert Alice
    Sarah Emma Lucy Kate Jack Henry George David Thomas Rachel Helen Julia Jane Susan Karen Linda Lisa Maria
    Carl Eric Brian Steve Adam Alan Andrew Charles Edward Jacob Joseph Luke Ryan Claire Diana Jessica Nancy
    Oliver Patrick Philip Richard Ruth Stephen Tim William Matthew Nicole Clara"""
)
"""People; all one token, none a place or a common noun of this lexicon."""

PLACES: tuple[str, ...] = _words(
    """school store park office garden market station library museum church hospital restaurant kitchen beach
    theatre hotel farm harbor airport zoo castle lake factory palace"""
)

OBJECTS: tuple[str, ...] = _words(
    """book drink ring basket letter ball cake knife hat coat flower map ticket bottle phone pen radio
    camera necklace bag gift coin shirt photo"""
)


class Forms(NamedTuple):
    """Singular and plural of a noun, or of a verb in the third person."""

    singular: str
    plural: str


def _forms(text: str) -> tuple[Forms, ...]:
    return tuple(Forms(*pair.split("/")) for pair in text.split())


NOUNS: tuple[Forms, ...] = _forms(
    """key/keys dog/dogs picture/pictures doctor/doctors teacher/teachers farmer/farmers boy/boys girl/girls
    singer/singers pilot/pilots lawyer/lawyers guard/guards painting/paintings bird/birds driver/drivers
    actor/actors nurse/nurses student/students officer/officers cat/cats horse/horses tree/trees
    plant/plants machine/machines soldier/soldiers writer/writers manager/managers customer/customers
    clerk/clerks lamp/lamps chair/chairs dancer/dancers"""
)
"""Subjects of the agreement task."""

ATTRACTORS: tuple[Forms, ...] = _forms(
    """cabinet/cabinets wall/walls road/roads river/rivers door/doors window/windows building/buildings
    field/fields bridge/bridges house/houses gate/gates tower/towers shop/shops street/streets shelf/shelves
    box/boxes desk/desks boat/boats fence/fences table/tables"""
)
"""Nouns between subject and verb, of either number; none is a subject."""

PREPOSITIONS: tuple[str, ...] = ("near", "beside", "behind", "above", "below", "under", "by", "across")
"""An attractor phrase is a preposition, "the", and an attractor: "near the cabinets"."""

VERBS: tuple[Forms, ...] = _forms(
    """is/are was/were has/have looks/look seems/seem appears/appear stands/stand moves/move remains/remain
    needs/need works/work waits/wait falls/fall stays/stay"""
)
"""Singular and plural; the first three are the usual answers."""

EVENTS: tuple[str, ...] = _words(
    """war battle siege strike drought journey trial contract treaty reign project famine expedition revolt
    dispute voyage conflict campaign exhibition alliance mission debate crisis occupation plague tour feud
    rebellion renovation truce"""
)
"""Things that last from one year to another."""

CENTURIES: tuple[str, ...] = ("12", "13", "14", "15", "16", "17")
"""The first two digits of a year."""

YEARS: tuple[str, ...] = tuple(f"{year:02d}" for year in range(100))
"""The last two digits of a year."""

WHOLE_YEARS: frozenset[str] = frozenset(
    _words(
        """1200 1280 1300 1302 1303 1304 1305 1306 1307 1308 1309 1400 1440 1500 1502 1503 1504 1505 1506 1507
    1508 1509 1600 1700"""
    )
)
"""Years of `CENTURIES` that GPT-2 does not cut into century and two digits; tasks leave them out."""
