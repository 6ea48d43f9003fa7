"""Arguments that several tools share. Their descriptions are part of the schemas that a client sees."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

ProjectName: TypeAlias = Annotated[
    str,
    Field(description="The project's folder, NAME.kforge. Empty: the one that the server was started with."),
]
OrderName: TypeAlias = Annotated[str, Field(description="Id of a work order, or a unique prefix of it.")]
VariantName: TypeAlias = Annotated[
    str, Field(description="Label or unique prefix of a variant's id, or its operator if that has only one variant.")
]
