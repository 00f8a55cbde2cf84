//! Options for the run and the output of the workers, and values that are not text.

use std::os::unix::ffi::OsStringExt;

use super::*;

#[test]
fn console_ranks_and_format_follow_options() {
    let logs = |line: &str, environment: &[(&str, &str)]| launch(line, environment).spec.logs;
    let heard = |filter: &str| {
        let ranks = logs("torchrun x.py", &[("PET_LOCAL_RANKS_FILTER", filter)]).console?;
        Some(ranks.into_iter().map(|rank| rank.0).collect::<Vec<_>>())
    };
    assert_eq!(heard(""), None);
    assert_eq!(heard("0"), Some(vec![0]));
    assert_eq!(heard(" 2 , 0,2,1_0"), Some(vec![0, 2, 10]));
    assert_eq!(heard("-1"), Some(vec![]));
    for filter in ["0,,1", ",", "a", "0;1", "1.5"] {
        let message = format!("`--local-ranks-filter` is `{filter}`, which is not a list of local ranks");
        let (code, text) = refusal(&format!("rankrun --local-ranks-filter {filter} x.py"), &[]);
        assert!(code == 1 && text.starts_with(&message), "{text}");
    }

    let variable = [("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${rank}")];
    let prefix = |line: &str| logs(line, &variable).prefix;
    assert_eq!(prefix("torchrun x.py").as_deref(), Some("${rank}"));
    assert_eq!(prefix("torchrun --log-line-prefix-template= x.py").as_deref(), Some("${rank}"));
    assert_eq!(prefix("torchrun --log-line-prefix-template $x: x.py").as_deref(), Some("$x:"));
    let empty = [("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "")];
    assert_eq!(logs("rankrun x.py", &empty).prefix, None);
}

#[test]
fn duplicate_filters_require_log_files() {
    let line = "torchrun --duplicate-stdout-filters a,,b,c --log-dir=/logs x.py";
    let duplicates = launch(line, &[("PET_DUPLICATE_STDERR_FILTERS", "")]).spec.logs.duplicates;
    assert_eq!((duplicates.stdout, duplicates.stderr), (vec!["a,b".into(), "c".into()], vec![String::new()]));
    for name in ["rankrun", "torchrun"] {
        let line = format!("{name} --log-dir /dev/null x.py");
        let (code, text) = refusal(&line, &[("PET_DUPLICATE_STDERR_FILTERS", "a")]);
        assert_eq!(code, 1);
        assert_eq!(
            text,
            "`PET_DUPLICATE_STDERR_FILTERS` copies lines to a file, and `--log-dir /dev/null` makes none"
        );
    }
    // The file is worth a place where it is found.
    let with_memory = world().folder("/dev/shm");
    let dir = launch_in(with_memory, "rankrun --duplicate-stdout-filters a x.py", &[]).spec.logs.dir;
    assert_eq!(dir, LogDir::Temporary(PathBuf::from("/tmp")));
}

#[test]
fn run_path_overrides_other_entrypoint_kinds() {
    let python = PathBuf::from("/usr/bin/python3");
    let script = |script: &str| Entrypoint::RunPath { python: python.clone(), script: script.into() };
    for name in ["rankrun", "torchrun"] {
        let plain = launch(&format!("{name} --run-path x.py a"), &[]);
        assert_eq!((plain.spec.entrypoint, plain.notices), (script("x.py"), vec![]));
        let all = launch(&format!("{name} --run-path -m x.py"), &[("PET_NO_PYTHON", "1")]);
        assert_eq!(all.spec.entrypoint, script("x.py"));
        assert_eq!(
            said(&all),
            [
                "`PET_NO_PYTHON` has no effect: `--run-path` says how the script runs",
                "`--module` has no effect: `--run-path` says how the script runs"
            ]
        );
        let by_variable = launch(&format!("{name} -m x.py"), &[("PET_RUN_PATH", "1")]);
        assert_eq!(said(&by_variable), ["`--module` has no effect: `PET_RUN_PATH` says how the script runs"]);
        for missing in ["y.py", "-", "env"] {
            let (code, text) = refusal(&format!("{name} {missing}"), &[("PET_RUN_PATH", "1")]);
            assert_eq!(code, 1);
            assert!(text.starts_with(&format!("the entrypoint `{missing}` does not exist")), "{text}");
        }
    }
}

#[test]
fn non_utf8_option_values_are_refused_but_not_arguments() {
    let odd = || OsString::from_vec(b"a\xff".to_vec());
    let facts = |name: &str| {
        let environment = vec![("PATH".into(), "/usr/bin".into()), (name.into(), odd())];
        rankrun_core::facts::Facts::new(environment, Box::new(world()))
    };
    let line = |words: &[&OsString]| words.iter().map(|word| (*word).clone()).collect::<Vec<_>>();
    let (name, script) = (OsString::from("torchrun"), OsString::from("x.py"));
    for (row, code) in [
        ("PET_ROLE", 1),
        ("PET_TEE", 1),
        ("PET_NPROC_PER_NODE", 1),
        ("PET_SIGNALS_TO_HANDLE", 1),
        ("PET_LOCAL_RANKS_FILTER", 1),
        ("PET_RDZV_ENDPOINT", 1),
        ("PET_STANDALONE", 1),
        ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", 1),
        ("PET_MASTER_PORT", 2),
        ("PET_MONITOR_INTERVAL", 2),
        ("RANKRUN_STOP_SIGNAL_TO", 2),
    ] {
        let error = interpret(&line(&[&name, &script]), &facts(row)).unwrap_err();
        assert_eq!(error.exit_code(), code, "{row}: {error}");
        assert!(error.render().contains(row), "{row}: {error}");
    }
    let glued = OsString::from_vec(b"--role=\xff".to_vec());
    let error = interpret(&line(&[&name, &glued, &script]), &facts("X")).unwrap_err();
    assert_eq!(error.to_string(), "`--role` is not valid UTF-8: `\u{fffd}`");
    let words = [&b"rankrun"[..], b"--log-dir=\xff", b"--stop-signal-to=\xfe", b"x.py"];
    let error = interpret(&words.map(|word| OsString::from_vec(word.to_vec())), &facts("X")).unwrap_err();
    assert!(
        error.to_string().starts_with("`--stop-signal-to` is `\u{fffd}`, which is not one of"),
        "{error}"
    );

    let answer = interpret(&line(&[&name, &script, &odd()]), &facts("HIP_VISIBLE_DEVICES"));
    let Ok(Command::Launch(launch)) = answer else { panic!("{answer:?}") };
    assert_eq!(launch.spec.args, [odd()]);
}

#[test]
fn stop_signal_is_a_signal_that_can_be_handled() {
    let signal = |line: &str, environment: &[(&str, &str)]| {
        launch(line, environment).spec.options.stop_signal.map(|signal| signal.to_string())
    };
    assert_eq!(signal("rankrun x.py", &[]), None);
    assert_eq!(signal("rankrun --stop_signal usr1 x.py", &[]).as_deref(), Some("SIGUSR1"));
    let variable = [("RANKRUN_STOP_SIGNAL", "2")];
    assert_eq!(signal("torchrun x.py", &variable).as_deref(), Some("SIGINT"));
    assert_eq!(signal("rankrun --stop-signal HUP x.py", &variable).as_deref(), Some("SIGHUP"));
    for (line, value, name) in [
        ("rankrun --stop-signal KILL x.py", "", "--stop-signal"),
        ("rankrun x.py", "soon", "RANKRUN_STOP_SIGNAL"),
    ] {
        let (code, text) = refusal(line, &[("RANKRUN_STOP_SIGNAL", value)]);
        assert_eq!(code, 1);
        assert!(text.starts_with(&format!("`{name}` is `")), "{text}");
        assert!(text.contains("which is not a signal that can stop a worker, such as `INT`"), "{text}");
    }
}

#[test]
fn values_without_sense_are_refused_on_one_node_too() {
    let (code, text) = refusal("rankrun --config= x.py", &[]);
    assert_eq!((code, text.as_str()), (1, "`--config` is empty, which is not the path of a file"));
    let (code, text) = refusal("rankrun x.py", &[("RANKRUN_LEASE", "-1")]);
    assert_eq!(code, 1);
    assert!(text.starts_with("`RANKRUN_LEASE` is `-1`, which is not a time of 2 s or more"), "{text}");
}
