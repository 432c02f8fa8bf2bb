"""What Ray Serve is told to run."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_model

from srb.cluster.placement import replicas_wanted
from srb.options.settings import Settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve.yaml"


@pytest.fixture
def deploy() -> Any:
    pytest.importorskip("ray.serve", reason="replicas need Ray: pip install 'llama-srb[cluster]'")
    return importlib.import_module("srb.cluster.deploy")


def deployment_of(app: Any) -> Any:
    return app._bound_deployment


@pytest.mark.ray
def test_the_example_for_serve_deploy(deploy: Any, tmp_path: Path) -> None:
    yaml, schema = map(importlib.import_module, ("yaml", "ray.serve.schema"))
    config = schema.ServeDeploySchema.model_validate(yaml.safe_load(EXAMPLE.read_text()))
    (app,) = config.applications
    assert app.import_path == f"{deploy.__name__}:{deploy.build.__name__}"
    assert app.name == deploy.APPLICATION
    model = write_tiny_model(tmp_path / "tiny.gguf")
    replicas = deployment_of(deploy.build(app.args | {"model": str(model)}))
    assert replicas.name == deploy.DEPLOYMENT
    scale = replicas._deployment_config.autoscaling_config
    assert (scale.min_replicas, scale.max_replicas) == (1, 4)
    settings, fingerprint = replicas.init_args
    assert (settings.model, settings.parallel, settings.threads) == (model, 32, 1)
    assert fingerprint


@pytest.mark.ray
def test_replicas_get_no_keys(deploy: Any, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    app = deploy.application(Settings(model=model, api_key="secret", replicas="2", host="0.0.0.0"))
    settings, _ = deployment_of(app).init_args
    assert (settings.api_key, settings.host) == (None, "127.0.0.1")
    assert deployment_of(app)._deployment_config.num_replicas == 2


@pytest.mark.ray
def test_replicas_know_where_their_draft_model_is(deploy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in a folder of their own."""
    model = write_tiny_model(tmp_path / "tiny.gguf")
    monkeypatch.chdir(tmp_path)
    settings, _ = deployment_of(deploy.application(Settings(model=model, model_draft=Path(model.name)))).init_args
    assert settings.model_draft == model


class Context:
    """What Ray Serve asks `replicas_wanted` with."""

    target_num_replicas = 2

    def __init__(self, **metrics: list[int]) -> None:
        self.aggregated_metrics = {name: dict(enumerate(values)) for name, values in metrics.items()}


@pytest.mark.parametrize(
    ("loads", "wanted"), [([0, 0], 1), ([32, 0], 1), ([32, 1], 2), ([40, 32], 3), ([300, 20], 10), ([], 2)]
)
def test_there_are_as_many_replicas_as_there_is_room_needed_for(loads: list[int], wanted: int) -> None:
    assert replicas_wanted(Context(load=loads, room=[32] * len(loads)))[0] == wanted
