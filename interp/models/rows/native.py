"""The small transformer of our own (`interp.models.native`)."""

from __future__ import annotations

from interp.models.family import Family, register_family

register_family(
    Family(
        "native",
        ("native",),
        layers="layers",
        embed="embed",
        pos_embed="pos_embed",
        rotary="rotary",
        final="final",
        unembed="unembed",
        ln1="ln1",
        ln2="ln2",
        post1="post1",
        post2="post2",
        attn="attn",
        qkv=("attn.q", "attn.k", "attn.v"),
        out="attn.o",
        mlp_in="mlp.fc",
        act="mlp.act",
        mlp_out="mlp.proj",
        softmax_fp32=False,
        geometry=lambda config: config.geometry(),
    )
)
