use super::*;
use rankrun_core::facts::fake::FakeWorld;

fn choose(world: FakeWorld, argv0: &str, environment: &[(&str, &str)]) -> (String, Option<String>) {
    let (python, notice) = choose_python(OsStr::new(argv0), &world.facts(environment)).unwrap();
    (python.display().to_string(), notice.map(|notice| notice.to_string()))
}

fn venv(world: FakeWorld, prefix: &str) -> FakeWorld {
    world
        .file(&format!("{prefix}/pyvenv.cfg"), b"home")
        .link(&format!("{prefix}/bin/python"), "/usr/bin/python3.11")
        .link(&format!("{prefix}/bin/python3"), "/usr/bin/python3.11")
        .program(&format!("{prefix}/bin/rankrun"))
}

fn system() -> FakeWorld {
    FakeWorld::default().program("/usr/bin/python3.11").link("/usr/bin/python3", "/usr/bin/python3.11")
}

#[test]
fn python_is_taken_from_first_matching_place() {
    let world = || venv(venv(venv(system().program("/opt/py"), "/a"), "/b"), "/job/c");
    let rest = [("PATH", "/usr/bin"), ("VIRTUAL_ENV", "/b")];
    for (argv0, environment, python) in [
        ("/a/bin/rankrun", vec![("PYTHON_EXEC", "/opt/py")], "/opt/py"),
        ("/a/bin/rankrun", vec![("PYTHON_EXEC", "")], "/a/bin/python"),
        ("/a/bin/rankrun", vec![], "/a/bin/python"),
        ("/a/bin/rankrun", rest.to_vec(), "/a/bin/python"),
        ("c/bin/rankrun", rest.to_vec(), "/job/c/bin/python"),
        ("rankrun", vec![("PATH", "/b/bin:/usr/bin")], "/b/bin/python"),
        ("/elsewhere/rankrun", rest.to_vec(), "/usr/bin/python3"),
        ("rankrun", rest.to_vec(), "/usr/bin/python3"),
        ("/elsewhere/rankrun", vec![("PATH", "/"), ("VIRTUAL_ENV", "/b")], "/b/bin/python"),
        ("/elsewhere/rankrun", vec![("PATH", "/"), ("CONDA_PREFIX", "/b")], "/b/bin/python"),
        (
            "/elsewhere/rankrun",
            vec![("PATH", "/"), ("VIRTUAL_ENV", "/gone"), ("CONDA_PREFIX", "/b")],
            "/b/bin/python",
        ),
    ] {
        assert_eq!(choose(world(), argv0, &environment).0, python, "{argv0} {environment:?}");
    }
}

#[test]
fn python_exec_name_is_searched_in_path() {
    let world = || system().program("/usr/bin/pypy").file("/usr/bin/text", b"");
    let exec = |value: &str| {
        let facts = world().facts(&[("PATH", "/usr/bin"), ("PYTHON_EXEC", value)]);
        choose_python(OsStr::new("rankrun"), &facts)
    };
    assert_eq!(exec("pypy").unwrap().0, Path::new("/usr/bin/pypy"));
    for (value, message) in [
        ("nopy", "`PYTHON_EXEC` is `nopy`, which is not in PATH (1 folder)"),
        ("/nopy", "`PYTHON_EXEC` is `/nopy`, which does not exist (working folder `/job`)"),
        ("text", "`PYTHON_EXEC` is `text`, which has no run permission (`/usr/bin/text`)"),
        ("/tmp", "`PYTHON_EXEC` is `/tmp`, which is a folder"),
    ] {
        assert_eq!(exec(value).unwrap_err().to_string(), message);
    }
}

#[test]
fn different_active_python_gives_notice() {
    let active = [("PATH", "/a/bin:/usr/bin"), ("VIRTUAL_ENV", "/a")];
    let world = || venv(venv(system(), "/a"), "/b");
    for argv0 in ["/a/bin/rankrun", "rankrun", "/elsewhere/rankrun"] {
        assert_eq!(choose(world(), argv0, &active), ("/a/bin/python".to_owned(), None), "{argv0}");
    }
    // Two venvs of one interpreter are two Pythons.
    assert_eq!(
        choose(world(), "/a/bin/rankrun", &[("PATH", "/b/bin"), ("VIRTUAL_ENV", "/b")]).1.as_deref(),
        Some(
            "the workers run `/a/bin/python`, which stands beside the launcher, not `/b/bin/python`, found in \
             `PATH`, nor `/b/bin/python`, of `VIRTUAL_ENV`"
        )
    );
    // A stale variable that leads nowhere disagrees with no other.
    assert_eq!(choose(world(), "/a/bin/rankrun", &[("PATH", "/"), ("VIRTUAL_ENV", "/gone")]).1, None);
    // Links to one file outside of a venv are one Python.
    let linked = system().link("/opt/bin/python", "/usr/bin/python3.11").program("/opt/bin/rankrun");
    assert_eq!(choose(linked, "/opt/bin/rankrun", &[("PATH", "/usr/bin")]).1, None);
}

#[test]
fn missing_python_error_lists_searched_folders() {
    let environment = [("PATH", "/x:/y"), ("VIRTUAL_ENV", "/v")];
    let error =
        choose_python(OsStr::new("/a/bin/rankrun"), &FakeWorld::default().facts(&environment)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no `python` or `python3` to run the entrypoint with; looked in `/a/bin`, `/x`, `/y`, `/v/bin`"
    );
}

#[test]
fn shim_calling_python_is_used() {
    let world = || venv(venv(system(), "/a"), "/b");
    let calling = ("RANKRUN_SHIM_PYTHON", "/usr/bin/python3.11");
    let path = ("PATH", "/b/bin");
    let (python, notice) = choose(world(), "/a/bin/torchrun", &[calling, path]);
    assert_eq!((python.as_str(), notice), ("/usr/bin/python3.11", None));
    let exec = ("PYTHON_EXEC", "/b/bin/python");
    assert_eq!(choose(world(), "/b/bin/torchrun", &[calling, path, exec]).0, "/b/bin/python");
    let gone = ("RANKRUN_SHIM_PYTHON", "/gone/python");
    assert_eq!(choose(world(), "/a/bin/torchrun", &[gone, path]).0, "/a/bin/python");
}
