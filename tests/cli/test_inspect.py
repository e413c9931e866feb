"""`enginebay models inspect`."""

from pathlib import Path

from tests.cli.conftest import Run
from tests.conftest import ServeScripted

CONFIG = """\
server: {port: 1}
models:
  - {name: mine, backend: scripted, path: ., sampling: {temperature: 0.5}}
  - {name: broken, backend: failing, path: .}
"""


def rows(text: str) -> dict[str, str]:
    """Labels and what stands behind them."""
    cells = [line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip()]
    return {label.strip(): value.strip() for label, value in cells}


def test_of_a_server(run: Run, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], name="served", tools="hermes")
    result = run("models", "inspect", "served", "--url", server.url)
    assert result.exit_code == 0, result.output
    found = rows(result.stdout)
    assert found["model"] == "served on scripted"
    assert found["context"] == "4096 tokens, vocabulary of 1114112"
    assert found["tool calls"] == "hermes: set in the config"
    assert found["reasoning"] == "none: none found in the chat template"
    assert found["takes"].startswith("system messages, several of them, later ones, tools")
    assert "developer messages" in found["takes no"]
    assert found["special tokens"] == "none"
    assert found["kept to"] == "schemas and grammars"
    free = serve_scripted(["ok"], name="free", engine={"constraints": False})
    found = rows(run("models", "inspect", "free", "--url", free.url).stdout)
    assert found["kept to"] == "no schema, no grammar"


def test_without_a_server_the_model_is_loaded(run: Run, plugin: Path) -> None:
    Path("config.yml").write_text(CONFIG, encoding="utf-8")
    result = run("models", "inspect", "mine")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("no server answers at http://127.0.0.1:1; loading mine")
    found = rows(result.stdout)
    assert found["reasoning"] == "think: its tags are in the chat template"
    assert found["config's defaults"] == "temperature=0.5"


def test_models_that_cannot_be_inspected(run: Run, plugin: Path) -> None:
    Path("config.yml").write_text(CONFIG, encoding="utf-8")
    result = run("models", "inspect", "other")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "'other' is neither a model of the config (mine, broken)" in result.stderr
    result = run("models", "inspect", "broken")
    assert result.exit_code == 1
    assert "broken cannot be loaded: out of memory" in result.stderr


def test_of_nobody(run: Run, serve_scripted: ServeScripted) -> None:
    result = run("models", "inspect", "mine", "--url", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "nothing answers at 127.0.0.1:1" in result.stderr
    server = serve_scripted(["ok"])
    result = run("models", "inspect", "nobody", "--url", server.url)
    assert result.exit_code == 1
    assert "the model 'nobody' does not exist" in result.stderr


def test_of_a_file_without_a_server(run: Run, plugin: Path) -> None:
    Path("config.yml").write_text(CONFIG, encoding="utf-8")
    Path("script").touch()
    for path in ("script", str(Path("script").absolute())):
        result = run("models", "inspect", path)
        assert result.exit_code == 0, result.output
        assert result.stderr.startswith("no server answers at http://127.0.0.1:1; loading ")
        assert rows(result.stdout)["model"] == "script on scripted"


def test_of_a_file_beside_a_server(run: Run, plugin: Path, serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"], name="served")
    port = server.url.rpartition(":")[2]
    Path("config.yml").write_text(f"server: {{port: {port}}}\n", encoding="utf-8")
    for file in ("script", "other", "served"):
        Path(file).touch()
    for path in ("script", "./script", str(Path("script").absolute())):
        result = run("models", "inspect", path)
        assert result.exit_code == 0, result.output
        assert result.stderr.startswith(
            f"the server at {server.url} does not list this model; loading {path}"
        )
        assert rows(result.stdout)["model"] == "script on scripted"
    result = run("models", "inspect", "served")  # the server's model goes before the file
    assert (result.exit_code, result.stderr) == (0, "")
    assert rows(result.stdout)["context"] == "4096 tokens, vocabulary of 1114112"
    result = run("models", "inspect", "nothing")
    assert result.exit_code == 1
    assert "the model 'nothing' does not exist" in result.stderr
    result = run("models", "inspect", "script", "--url", server.url)  # of that server alone
    assert result.exit_code == 1
    assert "the model 'script' does not exist" in result.stderr


def test_of_a_file_with_a_backend_that_is_named(run: Run, plugin: Path) -> None:
    Path("config.yml").write_text(CONFIG, encoding="utf-8")
    Path("other").touch()
    result = run("models", "inspect", "other")
    assert result.exit_code == 2
    assert "no backend recognises other as a model" in result.stderr
    result = run("models", "inspect", "other", "--backend", "scripted")
    assert result.exit_code == 0, result.output
    assert rows(result.stdout)["model"] == "other on scripted"
    assert "no server answers" not in result.stderr
    result = run("models", "inspect", "other", "--backend", "scripted", "--url", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "use one of the two" in result.stderr
