use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;
use crate::cli::option::{command, options};
use crate::cli::settings::{ParsedArgs, WrittenOption, parse};
use rankrun_core::spec::CliFlavor;

mod oracle;

fn words(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}

/// The options as `long=value`, then the entrypoint, then its arguments.
fn summary(cli_flavor: CliFlavor, text: &str) -> Result<String, String> {
    match parse(cli_flavor, &words(text)) {
        Err(error) => Err(error.to_string()),
        Ok(ParsedArgs::Launch(line)) => {
            let options = line.options.iter().map(|written| match written.option.kind() {
                Kind::Flag => written.option.long_name().to_owned(),
                _ => format!("{}={}", written.option.long_name(), written.setting.value.to_string_lossy()),
            });
            let program = std::iter::once(&line.entrypoint).chain(&line.arguments);
            let program = program.map(|word| word.to_string_lossy().into_owned());
            Ok(options.chain(["|".to_owned()]).chain(program).collect::<Vec<_>>().join(" "))
        }
        Ok(answer) => Ok(format!("{answer:?}")),
    }
}

#[test]
fn command_line_is_parsed_like_argparse() {
    for (typed, read) in [
        ("x.py", "| x.py"),
        ("x.py -h --nnodes 3 -- a", "| x.py -h --nnodes 3 -- a"),
        ("x.py --no", "| x.py --no"),
        // The table of swallowed `--`.
        ("-- x.py --a", "| x.py --a"),
        ("x.py -- --a", "| x.py --a"),
        ("-- x.py -- b", "| x.py -- b"),
        ("x.py -- a -- b", "| x.py a -- b"),
        ("-- --nproc-per-node 2", "| --nproc-per-node 2"),
        ("-- -- x.py", "| -- x.py"),
        ("x.py --", "| x.py"),
        ("x.py -- --", "| x.py --"),
        ("--standalone -- x.py -- b", "standalone | x.py -- b"),
        // Values.
        ("--role a x.py b", "role=a | x.py b"),
        ("--role=a x.py", "role=a | x.py"),
        ("--role=a=b x.py", "role=a=b | x.py"),
        ("--role= x.py", "role= | x.py"),
        ("-r 3 x.py", "redirects=3 | x.py"),
        ("-r3 x.py", "redirects=3 | x.py"),
        ("-r=3 x.py", "redirects=3 | x.py"),
        ("-r= x.py", "redirects= | x.py"),
        ("-m -t 1 x", "module tee=1 | x"),
        ("-mr3 x", "module redirects=3 | x"),
        ("-mt 1 x", "module tee=1 | x"),
        ("-mm x", "module module | x"),
        ("--role -1 x.py", "role=-1 | x.py"),
        ("--role -.5 x.py", "role=-.5 | x.py"),
        ("--role - x.py", "role=- | x.py"),
        ("--max-restarts=+1_0 x.py", "max-restarts=+1_0 | x.py"),
        // A repeated option stands twice here; the last one counts.
        ("--role a --role b x.py", "role=a role=b | x.py"),
        // Spellings.
        ("--nproc_per_node=2 --no_python x", "nproc-per-node=2 no-python | x"),
        ("--nproc-per 2 --no-py x", "nproc-per-node=2 no-python | x"),
        ("--max_r 1 --nn=1 x.py", "max-restarts=1 nnodes=1 | x.py"),
        // Entrypoints that look odd.
        ("- a", "| - a"),
        ("-5 a", "| -5 a"),
        ("-h", "Help(Short)"),
        ("--he --whatever", "Help(Long)"),
        ("--whatever -mh", "Help(Short)"),
        ("--print-completion bash", "Completion(Bash)"),
    ] {
        assert_eq!(summary(CliFlavor::Torchrun, typed).as_deref(), Ok(read), "`{typed}`");
    }
    let spaced = ["--role", "-a b", "-x y"].map(OsString::from);
    let Ok(ParsedArgs::Launch(line)) = parse(CliFlavor::Torchrun, &spaced) else { panic!("refused") };
    assert_eq!(
        (line.options[0].setting.value.as_os_str(), line.entrypoint.as_os_str()),
        ("-a b".as_ref(), "-x y".as_ref())
    );
}

#[test]
fn usage_errors_match_argparse_messages() {
    let required = "the following arguments are required: training_script, training_script_args";
    for (typed, message) in [
        ("", required),
        ("--", required),
        ("--nnodes 1", required),
        ("--unknown", required),
        ("--unknown x.py", "unrecognized arguments: --unknown"),
        ("-x --unknown=3 --standalone x.py a", "unrecognized arguments: -x --unknown=3"),
        ("--nproc_per-node 2 x.py", "unrecognized arguments: --nproc_per-node"),
        ("--nproc 2 x.py", "ambiguous option: --nproc could match --nproc-per-node, --nproc_per_node"),
        // argparse looks at all words for an ambiguous one before it reads the first.
        (
            "--role --mod --monit",
            "ambiguous option: --monit could match --monitor-interval, --monitor_interval",
        ),
        ("--max-restarts a x.py --node", "ambiguous option: --node could match --node-rank, --node_rank"),
        ("--max-restarts a x.py -- --node", "argument --max-restarts/--max_restarts: invalid int value: 'a'"),
        ("--standalone=it's x.py", "argument --standalone: ignored explicit argument \"it's\""),
        ("--stdi all x.py", "unrecognized arguments: --stdi"),
        ("--grace 1 x.py", "unrecognized arguments: --grace"),
        ("-v x.py", "unrecognized arguments: -v"),
        ("-n 2 x.py", "unrecognized arguments: -n"),
        ("-np 2 x.py", "unrecognized arguments: -np"),
        ("--num-gpus 2 --num_processes 2 x.py", "unrecognized arguments: --num-gpus"),
        ("--version x.py", "unrecognized arguments: --version"),
        ("-mpkg", "argument -m/--module: ignored explicit argument 'pkg'"),
        ("-m=1 x", "argument -m/--module: ignored explicit argument '1'"),
        ("--standalone=1 x.py", "argument --standalone: ignored explicit argument '1'"),
        ("--role", "argument --role: expected one argument"),
        ("--role --standalone x.py", "argument --role: expected one argument"),
        ("--role -- x.py", "argument --role: expected one argument"),
        ("-r", "argument -r/--redirects: expected one argument"),
        ("--role -x x.py", "argument --role: expected one argument"),
        ("--max-restarts abc x.py", "argument --max-restarts/--max_restarts: invalid int value: 'abc'"),
        (
            "--max-restarts a --max-restarts 1 x",
            "argument --max-restarts/--max_restarts: invalid int value: 'a'",
        ),
        ("--master_port= x.py", "argument --master-port/--master_port: invalid int value: ''"),
        (
            "--monitor-interval x x.py",
            "argument --monitor-interval/--monitor_interval: invalid float value: 'x'",
        ),
        (
            "--start-method no x.py",
            "argument --start-method/--start_method: invalid choice: 'no' (choose from 'spawn', 'fork', 'forkserver')",
        ),
    ] {
        assert_eq!(summary(CliFlavor::Torchrun, typed), Err(message.to_owned()), "`{typed}`");
    }
}

/// Every spelling of torchrun 2.15 with its shortest accepted prefix, as its own parser answers.
const SHORTEST: &[(&str, &str)] = &[
    ("--help", "--h"),
    ("--nnodes", "--nn"),
    ("--nproc-per-node", "--nproc-"),
    ("--nproc_per_node", "--nproc_"),
    ("--rdzv-backend", "--rdzv-b"),
    ("--rdzv_backend", "--rdzv_b"),
    ("--rdzv-endpoint", "--rdzv-e"),
    ("--rdzv_endpoint", "--rdzv_e"),
    ("--rdzv-id", "--rdzv-i"),
    ("--rdzv_id", "--rdzv_i"),
    ("--rdzv-conf", "--rdzv-c"),
    ("--rdzv_conf", "--rdzv_c"),
    ("--standalone", "--stan"),
    ("--max-restarts", "--max-"),
    ("--max_restarts", "--max_"),
    ("--monitor-interval", "--monitor-"),
    ("--monitor_interval", "--monitor_"),
    ("--start-method", "--start-"),
    ("--start_method", "--start_"),
    ("--event-log-handler", "--event-"),
    ("--event_log_handler", "--event_"),
    ("--role", "--ro"),
    ("--module", "--mod"),
    ("--no-python", "--no-"),
    ("--no_python", "--no_"),
    ("--run-path", "--run-"),
    ("--run_path", "--run_"),
    ("--log-dir", "--log-d"),
    ("--log_dir", "--log_d"),
    ("--redirects", "--re"),
    ("--tee", "--t"),
    ("--log-line-prefix-template", "--log-l"),
    ("--log_line_prefix_template", "--log_l"),
    ("--local-ranks-filter", "--local-r"),
    ("--local_ranks_filter", "--local_r"),
    ("--duplicate-stdout-filters", "--duplicate-stdo"),
    ("--duplicate_stdout_filters", "--duplicate_stdo"),
    ("--duplicate-stderr-filters", "--duplicate-stde"),
    ("--duplicate_stderr_filters", "--duplicate_stde"),
    ("--node-rank", "--node-"),
    ("--node_rank", "--node_"),
    ("--master-addr", "--master-a"),
    ("--master_addr", "--master_a"),
    ("--master-port", "--master-p"),
    ("--master_port", "--master_p"),
    ("--local-addr", "--local-a"),
    ("--local_addr", "--local_a"),
    ("--logs-specs", "--logs-"),
    ("--logs_specs", "--logs_"),
    ("--numa-binding", "--numa-"),
    ("--numa_binding", "--numa_"),
    ("--signals-to-handle", "--signals-"),
    ("--signals_to_handle", "--signals_"),
    ("--shutdown-timeout", "--shutdown-"),
    ("--shutdown_timeout", "--shutdown_"),
    ("--virtual-local-rank", "--virtual-"),
    ("--virtual_local_rank", "--virtual_"),
    ("--print-completion", "--print-"),
    ("--print_completion", "--print_"),
];

#[test]
fn torchrun_abbreviations_match_argparse() {
    let spellings: Vec<String> = options(CliFlavor::Torchrun).flat_map(LaunchOption::spellings).collect();
    assert_eq!(spellings, SHORTEST.iter().map(|(spelling, _)| *spelling).collect::<Vec<_>>());
    for (spelling, shortest) in SHORTEST {
        for end in 3..=spelling.len() {
            let prefix = &spelling[..end];
            let command = command(CliFlavor::Torchrun);
            let line = ArgvReader { command, rest: &[], normalised: Vec::new(), unknown: Vec::new() };
            let found = line.find_long(prefix.as_bytes(), OsStr::new(prefix));
            if prefix.len() < shortest.len() {
                assert!(matches!(found, Err(UsageError::Ambiguous { .. })), "`{prefix}` is ambiguous");
            } else {
                let option = found.unwrap().unwrap();
                assert!(option.spellings().iter().any(|name| name == spelling), "`{prefix}`");
            }
        }
    }
}

#[test]
fn rankrun_accepts_only_unique_abbreviations() {
    for (typed, read) in [
        ("--nproc 2 x.py", "nproc-per-node=2 | x.py"),
        ("--max=1 x.py", "max-restarts=1 | x.py"),
        ("--rdzv-b static x.py", "rdzv-backend=static | x.py"),
        ("--nod 0 x", "node-rank=0 | x"),
        ("--stdin 0 --grace 1.5 -v x.py", "stdin=0 grace=1.5 verbose | x.py"),
        ("-vv -vmr3 x", "verbose verbose verbose module redirects=3 | x"),
        ("--verbose x.py --verbose", "verbose | x.py --verbose"),
        ("--version", "Version"),
        ("run x.py", "| run x.py"),
        ("--devices 3,1 --quiet x.py", "devices=3,1 quiet | x.py"),
        ("--devices -2 x.py", "devices=-2 | x.py"),
        ("--devices -2,-3 x.py -2,-3", "devices=-2,-3 | x.py -2,-3"),
        ("--devices=-2,-3 x.py", "devices=-2,-3 | x.py"),
        ("--devices - x.py", "devices=- | x.py"),
        ("--devices= x.py", "devices= | x.py"),
        ("-n 2 x.py -n 3", "nproc-per-node=2 | x.py -n 3"),
        ("-n2 x.py", "nproc-per-node=2 | x.py"),
        ("-n=2 x.py", "nproc-per-node=2 | x.py"),
        ("-vn2 x.py", "verbose nproc-per-node=2 | x.py"),
        ("-np 2 x.py", "nproc-per-node=2 | x.py"),
        ("-np=2 x.py", "nproc-per-node=2 | x.py"),
        ("-np2 x.py", "nproc-per-node=2 | x.py"),
        ("-n auto x.py", "nproc-per-node=auto | x.py"),
        ("--num-processes 2 x.py", "nproc-per-node=2 | x.py"),
        ("--num_gpus=2 x.py", "nproc-per-node=2 | x.py"),
        ("--nproc-per-node 2 -n 3 x.py", "nproc-per-node=2 nproc-per-node=3 | x.py"),
    ] {
        assert_eq!(summary(CliFlavor::Rankrun, typed).as_deref(), Ok(read), "`{typed}`");
    }
    for (typed, message) in [
        ("--rdzv x x.py", "`--rdzv` could be `--rdzv-backend`, `--rdzv_backend`, `--rdzv-endpoint`"),
        ("--gra 1 x.py", "unknown option `--gra`"),
        ("--stdi 1 x.py", "unknown option `--stdi`"),
        ("--role -2,-3 x.py", "`--role` needs a value"),
        ("--devices --quiet x.py", "`--devices` needs a value"),
        ("--devices -m x.py", "`--devices` needs a value"),
        ("--device-type tpu x.py", "`--device-type` is `tpu`, which is not one of `cuda`, `rocm`, `xpu`"),
        (
            "--device-visibility none x.py",
            "`--device-visibility` is `none`, which is not one of `all`, `own`",
        ),
        ("--stdin two x.py", "`--stdin` is `two`, which is not a local rank, `all` or `none`"),
        ("--restart-factor soon x.py", "`--restart-factor` is `soon`, which is not a number"),
        ("-n x.py", "there is no entrypoint to run: `x.py` is read as the value of `--nproc-per-node`"),
        ("-np --quiet x.py", "`--nproc-per-node` needs a value"),
        ("-nproc-per-node 2 x.py", "unknown option `-nproc-per-node`"),
        ("-npernode 2 x.py", "unknown option `-npernode`"),
        ("--num-proc 2 x.py", "unknown option `--num-proc`"),
        ("--num_-gpus 2 x.py", "unknown option `--num_-gpus`"),
    ] {
        let error = parse(CliFlavor::Rankrun, &words(typed)).unwrap_err().to_string();
        assert!(error.starts_with(message), "`{typed}`: {error}");
    }
}

#[test]
fn non_utf8_arguments_reach_program() {
    let odd = OsString::from_vec(vec![0xff, b'=', 0xfe]);
    let typed = [OsString::from("--log-dir"), odd.clone(), odd.clone(), odd.clone()];
    let Ok(ParsedArgs::Launch(line)) = parse(CliFlavor::Torchrun, &typed) else { panic!("refused") };
    assert_eq!(
        (&line.options[0].setting.value, &line.entrypoint, &line.arguments),
        (&odd, &odd, &vec![odd.clone()])
    );
    let glued = [OsString::from_vec(b"--log-dir=\xff".to_vec()), OsString::from("x.py")];
    let Ok(ParsedArgs::Launch(line)) = parse(CliFlavor::Torchrun, &glued) else { panic!("refused") };
    assert_eq!(line.options[0].setting.value, OsString::from_vec(vec![0xff]));
}

fn any_word() -> impl Strategy<Value = OsString> {
    let names: Vec<String> = options(CliFlavor::Rankrun).flat_map(LaunchOption::spellings).collect();
    prop_oneof![
        prop::sample::select(names.clone()).prop_map(OsString::from),
        (prop::sample::select(names), "[=a-z0-9:]{0,4}").prop_map(|(name, tail)| (name + &tail).into()),
        "-[a-z=0-9]{0,4}".prop_map(OsString::from),
        "[-=.a-z0-9_ ]{0,6}".prop_map(OsString::from),
        prop::collection::vec(1u8.., 0..6).prop_map(OsString::from_vec),
    ]
}

proptest! {
    #[test]
    fn any_command_line_does_not_panic(line in prop::collection::vec(any_word(), 0..8)) {
        for cli_flavor in [CliFlavor::Rankrun, CliFlavor::Torchrun] {
            let _ = parse(cli_flavor, &line).map_err(|error| error.render());
        }
    }

    #[test]
    fn arguments_after_entrypoint_are_verbatim(args in prop::collection::vec(any_word(), 0..6)) {
        let mut typed = words("--standalone -r 3 -- x.py");
        typed.extend(args.clone());
        let Ok(ParsedArgs::Launch(line)) = parse(CliFlavor::Torchrun, &typed) else { panic!("refused") };
        prop_assert_eq!(line.arguments, args);
    }
}
