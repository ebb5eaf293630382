"""The nodes of a pipeline file whose `type` is a plugin's id."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    ValidationInfo,
    create_model,
    field_serializer,
    model_validator,
)

from headrace.pipeline.errors import PluginError
from headrace.pipeline.model.base import FLUSH, VERSION_COLUMN, NodeConfig
from headrace.pipeline.model.capabilities import SinkCapabilities, SourceCapabilities
from headrace.pipeline.model.run_options import Duration
from headrace.pipeline.model.telemetry import Telemetry
from headrace.pipeline.plugins import discovery as plugins
from headrace.pipeline.plugins.api import Plugin, PluginType
from headrace.pipeline.plugins.discovery import InstalledPlugin
from headrace.pipeline.plugins.options import (
    RawOptions,
    check,
    fields_of,
    gather,
    relocate_error,
    secret_keys,
)

TAG = "<plugin>"
"""How pydantic's locations call a node whose type is a plugin's."""
SECRETS = "headrace.secrets"
"""In a validation's context: secrets that a stored pipeline lacks, by node type and key."""
_NO_EFFECT = "Taken for Streamling's files; " + FLUSH.partition("; ")[2]


class PluginNodeConfig(NodeConfig):
    """What nodes of plugins share.

    Raises, as mistakes of the file, what the plugin's model finds wrong with the options.
    """

    KIND: ClassVar[PluginType]

    type: str = Field(description="The plugin's id: `operator` or `namespace.operator`.")
    options: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="The plugin's own options. Options at the level of `type` are accepted too and take"
        " precedence.",
    )
    _found: InstalledPlugin = PrivateAttr()
    _plugin: Plugin = PrivateAttr()
    _parsed: BaseModel = PrivateAttr()
    _pipeline: str = PrivateAttr(default="")
    _overridden: tuple[str, ...] = PrivateAttr(default=())

    @property
    def installed(self) -> InstalledPlugin:
        """The installed plugin."""
        return self._found

    @property
    def plugin(self) -> Plugin:
        """The declaration of the plugin."""
        return self._plugin

    @property
    def parsed(self) -> BaseModel:
        """The options as the plugin's own model, including those of the environment. May contain secrets."""
        return self._parsed

    @property
    def pipeline(self) -> str:
        """The name of the node's pipeline."""
        return self._pipeline

    @property
    def overridden(self) -> tuple[str, ...]:
        """Labels of the file that the plugin itself sets to other values."""
        return self._overridden

    def belongs_to(self, pipeline: str) -> None:
        """Set the node's pipeline."""
        self._pipeline = pipeline

    @model_validator(mode="wrap")
    @classmethod
    def _with_plugin(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if not isinstance(value, Mapping):
            return handler(value)
        try:
            result, plugin = plugins.load_plugin_of_type(str(value.get("type")), cls.KIND)
        except PluginError as error:
            line = relocate_error("plugin", error.message, ("type",), value.get("type"), {"hint": error.hint})
            raise ValidationError.from_exception_data(cls.__name__, [line]) from None
        keys = cls._own_keys()
        under = value.get("options") if isinstance(value.get("options"), Mapping) else {}
        flat = {key: one for key, one in value.items() if key not in keys}
        values = gather(result.id, plugin.options, flat, dict(under or {}))
        cls._add(value, plugin, values, info)
        parsed, lines = check(plugin.options, values)
        kept = {key: one for key, one in values.values.items() if key not in values.variables}
        shown = value.get("options", {})
        own = {key: one for key, one in value.items() if key in keys} | {
            "options": kept if isinstance(shown, Mapping) else shown
        }
        try:
            node = handler(own)
        except ValidationError as error:
            errors = [
                relocate_error(one["type"], one["msg"], one["loc"], one.get("input"), one.get("ctx"))
                for one in error.errors()
            ]
            raise ValidationError.from_exception_data(cls.__name__, [*errors, *lines]) from None
        if parsed is None:
            raise ValidationError.from_exception_data(cls.__name__, lines)
        return node._with_plugin_labels(result, plugin, parsed)  # noqa: SLF001  its own kind

    @classmethod
    def _own_keys(cls) -> set[str]:
        return {*fields_of(cls), *cls.model_fields}

    @classmethod
    def _add(
        cls, value: Mapping[str, Any], plugin: Plugin, raw_options: RawOptions, info: ValidationInfo
    ) -> None:
        """Add options from other places: a sink's key, and the secrets that a stored pipeline lacks."""
        fields = fields_of(plugin.options)
        if cls.KIND is PluginType.SINK and "primary_key" in fields and value.get("primary_key"):
            key = value["primary_key"]
            listed = (
                [part.strip() for part in key.split(",") if part.strip()] if isinstance(key, str) else key
            )
            as_text = fields["primary_key"].annotation is str and isinstance(listed, list)
            raw_options.values.setdefault("primary_key", ",".join(map(str, listed)) if as_text else listed)
            raw_options.at.setdefault("primary_key", ("primary_key",))
        known: Mapping[str, Any] = (info.context or {}).get(SECRETS, {}).get(plugin.id, {})
        for key in secret_keys(plugin.options) & known.keys():
            raw_options.values.setdefault(key, known[key])

    def _with_plugin_labels(
        self, installed_plugin: InstalledPlugin, plugin: Plugin, parsed: BaseModel
    ) -> Self:
        self._found, self._plugin, self._parsed = installed_plugin, plugin, parsed
        if not plugin.labels:
            return self
        labels = self.telemetry.labels if self.telemetry else {}
        telemetry = (self.telemetry or Telemetry()).model_copy(update={"labels": {**labels, **plugin.labels}})
        node = self.model_copy(update={"telemetry": telemetry})
        node._overridden = tuple(key for key, text in plugin.labels.items() if labels.get(key, text) != text)  # noqa: SLF001  its own kind
        if self.telemetry is None:
            node.model_fields_set.discard("telemetry")  # the file does not set it
        return node

    @field_serializer("options", mode="wrap")
    def _without_secrets(self, value: dict[str, Any], handler: SerializerFunctionWrapHandler) -> Any:
        """Restore secrets of a pipeline from the ledger, which stores none, from file or environment."""
        hidden = secret_keys(self._plugin.options)
        return handler({key: one for key, one in value.items() if key not in hidden})


class PluginSourceConfig(PluginNodeConfig):
    """A source of a plugin."""

    KIND: ClassVar[PluginType] = PluginType.SOURCE

    @property
    def capabilities(self) -> SourceCapabilities:
        """What the plugin's class says it can do."""
        return self.plugin.make.capabilities  # pyright: ignore[reportFunctionMemberAccess]  Plugin checks that it is there

    @property
    def is_unbounded(self) -> bool:
        """Whether the source is a stream."""
        return not self.capabilities.bounded


class PluginTransformConfig(PluginNodeConfig):
    """A transform of a plugin."""

    KIND: ClassVar[PluginType] = PluginType.TRANSFORM

    from_: str = Field(alias="from", description="The node whose rows are read.")
    batch_size: int | None = Field(default=None, exclude=True, description=_NO_EFFECT)
    batch_flush_interval: Duration | None = Field(default=None, exclude=True, description=_NO_EFFECT)

    def inputs(self, node: str) -> tuple[str, ...]:
        """Return the node that the transform reads."""
        del node
        return (self.from_,)


class PluginSinkConfig(PluginNodeConfig):
    """A sink of a plugin."""

    KIND: ClassVar[PluginType] = PluginType.SINK

    from_: str = Field(alias="from", description="The node whose rows are written.")
    delivery: Literal["exactly_once", "at_least_once"] | None = Field(
        default=None,
        description="Delivery guarantee. Defaults to the strongest that the sink supports. A sink that"
        " stores no commit record is at least once.",
    )
    batch_size: int | None = Field(default=None, description=FLUSH)
    batch_flush_interval: Duration | None = Field(default=None, description=FLUSH)

    version_column: str | None = Field(default=None, description=VERSION_COLUMN)

    @property
    def capabilities(self) -> SinkCapabilities:
        """What the plugin's class says it can do."""
        return self.plugin.make.capabilities  # pyright: ignore[reportFunctionMemberAccess]  Plugin checks that it is there

    @property
    def upserts_by_key(self) -> bool:
        """Whether the sink upserts and deletes with a primary key, and can only append without one."""
        return self.capabilities.upsert


NODES: Mapping[str, type[PluginNodeConfig]] = {
    "sources": PluginSourceConfig,
    "transforms": PluginTransformConfig,
    "sinks": PluginSinkConfig,
}
"""By the part of the file."""


def with_plugins(union: Any, part: str) -> Any:
    """Return a union of nodes by `type` that also accepts plugins. Built-in types take precedence."""
    members = get_args(union)[0]
    models = get_args(members) or (members,)
    tags = {
        name: get_args(model.model_fields["type"].annotation)[0]
        for model in models
        for name in get_args(model.model_fields["type"].annotation)
    }
    tagged = [Annotated[model, Tag(get_args(model.model_fields["type"].annotation)[0])] for model in models]

    def tag(value: Any) -> str | None:
        return _tag(tags, value)

    return Annotated[Union[(*tagged, Annotated[NODES[part], Tag(TAG)])], Discriminator(tag)]


def _tag(tags: Mapping[str, str], value: Any) -> str | None:
    """Return the built-in type, or the tag of plugins.

    An unknown type is returned as it is, and reported later.
    """
    if isinstance(value, PluginNodeConfig):
        return TAG
    if not isinstance(value, Mapping | BaseModel):
        return next(iter(tags.values()))  # any model, because all refuse a non-mapping
    if isinstance(value, Mapping) and "type" not in value:
        return None
    kind = value["type"] if isinstance(value, Mapping) else getattr(value, "type", None)
    if isinstance(kind, str) and kind not in tags and _is_there(kind):
        return TAG
    return tags.get(kind, kind) if isinstance(kind, str) else str(kind)


def _is_there(plugin_id: str) -> bool:
    try:
        return plugins.find(plugin_id) is not None
    except PluginError:
        return True  # two packages have this id: the node raises it with the location


def model_of(part: str, plugin_id: str) -> type[BaseModel]:
    """Return one model with the keys of a plugin's nodes: the common keys, and the plugin's options."""
    try:
        _, plugin = plugins.load_plugin_of_type(plugin_id, NODES[part].KIND)
    except PluginError:
        return NODES[part]
    return _together(part, plugin.id, plugin.options)


@cache
def _together(part: str, plugin_id: str, options: type[BaseModel]) -> type[BaseModel]:
    base = NODES[part]
    fields: dict[str, Any] = {
        name: (info.annotation, info) for name, info in base.model_fields.items() if name != "type"
    }
    own = {name: (info.annotation, info) for name, info in options.model_fields.items() if name not in fields}
    kind: Any = Literal[plugin_id]  # pyright: ignore[reportInvalidTypeForm]  a type of its own per plugin
    make: Any = create_model
    return make(
        f"Plugin{part.capitalize()}{plugin_id.title()}".replace(".", "").replace("-", ""),
        __doc__=(options.__doc__ or base.__doc__),
        type=(kind, plugin_id),
        **fields,
        **own,
    )
