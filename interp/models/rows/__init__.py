"""The family rows, by kinship: GPT, ALiBi and Falcon, Llama and what follows it, routed MLPs, our own."""

from __future__ import annotations

from interp.models.rows import experts, falcon, gemma, gpt, llama, native

__all__ = ["experts", "falcon", "gemma", "gpt", "llama", "native"]
