//! Each rule of the table, and the precedence of the rules.

use super::*;

#[path = "decoy_tests.rs"]
mod decoys;

/// A machine with these variables, interpreters and listeners.
#[derive(Default)]
struct Fake {
    variables: Vec<(&'static str, &'static str)>,
    pythons: Vec<(&'static str, bool)>,
    here: Option<&'static str>,
    listens: Option<(u16, &'static str)>,
    has_carriage_return: bool,
    never_executable: Option<NeverExecutable>,
    rank_0_has_store: bool,
}

impl Surroundings for Fake {
    fn variable(&self, name: &str) -> Option<String> {
        self.variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    fn other_pythons(&self, _: &str) -> Vec<OtherPython> {
        let other =
            |(path, has_module): &(&str, bool)| OtherPython { path: path.into(), has_module: *has_module };
        self.pythons.iter().map(other).collect()
    }

    fn local_module_file(&self, _: &str) -> Option<String> {
        self.here.map(str::to_owned)
    }

    fn listener(&self, port: u16) -> Option<Listener> {
        let (_, name) = self.listens.filter(|(listens, _)| *listens == port)?;
        Some(Listener { pid: 7, name: name.to_owned() })
    }

    fn shared_memory(&self) -> Option<u64> {
        Some(64 << 20)
    }

    fn never_executable(&self, _: &Path) -> Option<NeverExecutable> {
        self.never_executable
    }

    fn has_carriage_return(&self, _: &Path) -> bool {
        self.has_carriage_return
    }
}

fn killed(number: i32) -> Exit {
    Exit::Signal { number, core_dumped: false }
}

/// The row that fits a Python script, and its hint.
fn hint_of(exit: Exit, tail: &[&str], fake: &Fake) -> Option<(&'static str, String)> {
    of_program(exit, tail, Program::Python { python: Path::new("/venv/bin/python") }, fake)
}

fn of_program(
    exit: Exit,
    tail: &[&str],
    program: Program<'_>,
    fake: &Fake,
) -> Option<(&'static str, String)> {
    let tail: Vec<String> = tail.iter().map(|line| (*line).to_owned()).collect();
    let master =
        Master { addr: "10.0.0.1".to_owned(), port: 29_500, uses_agent_store: !fake.rank_0_has_store };
    let clues = Clues {
        exit,
        program,
        message: None,
        tail: &tail,
        workers: 2,
        master: Some(&master),
        several_hosts: true,
    };
    named_hint(&clues, fake)
}

/// The hint of that row for a shell script.
#[track_caller]
fn of_shell(name: &str, code: i32, tail: &[&str], parts: &[&str]) {
    let found =
        of_program(Exit::Code(code), tail, Program::Other { path: Path::new("./run") }, &Fake::default());
    expect(found, name, parts);
}

#[track_caller]
fn expect(found: Option<(&'static str, String)>, name: &str, parts: &[&str]) {
    let (row, hint) = found.unwrap_or_else(|| panic!("no hint of `{name}`"));
    assert_eq!(row, name, "{hint}");
    parts.iter().for_each(|part| assert!(hint.contains(part), "`{part}` is not in: {hint}"));
}

#[track_caller]
fn of_python(name: &str, line: &str, parts: &[&str]) {
    let tail = ["Traceback (most recent call last):", "  File \"x.py\", line 4, in <module>", line];
    expect(hint_of(Exit::Code(1), &tail, &Fake::default()), name, parts);
}

const TERMINATE: &str = "terminate called without an active exception";

#[test]
fn abort_at_exit_hint_names_destroy_process_group() {
    let abort = killed(libc::SIGABRT);
    let found = hint_of(abort, &["step 9", TERMINATE], &Fake::default());
    expect(
        found,
        "abort at exit",
        &["probably", "when the script had ended", "destroy_process_group()` at the end"],
    );
    let found = hint_of(
        abort,
        &["Traceback (most recent call last):", "ValueError: no data", TERMINATE],
        &Fake::default(),
    );
    expect(found, "abort at exit", &["`ValueError: no data` came first", "in a `finally`"]);
    of_shell("abort at exit", 134, &[TERMINATE], &["destroy_process_group", "`std::thread`"]);
    assert_eq!(hint_of(abort, &["terminate called after throwing"], &Fake::default()), None);
    assert_eq!(hint_of(Exit::Code(1), &[TERMINATE], &Fake::default()), None);
}

#[test]
fn nccl_without_gpu_hint_names_gloo() {
    let row = "no NCCL or no GPU";
    for line in [
        "RuntimeError: nccl2 requires at least one CUDA device",
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    ] {
        of_python(row, line, &["backend `gloo`", "`rankrun devices`"]);
        let fake = Fake { variables: vec![("CUDA_VISIBLE_DEVICES", "-1")], ..Fake::default() };
        expect(hint_of(Exit::Code(1), &[line], &fake), row, &["`CUDA_VISIBLE_DEVICES=-1` hides", "unset"]);
    }
    of_python(row, "RuntimeError: Distributed package doesn't have NCCL built in", &["`gloo`", "with CUDA"]);
    of_python(row, "RuntimeError: No CUDA GPUs are available", &["`rankrun devices`"]);
    of_python(row, "AssertionError: Torch not compiled with CUDA enabled", &["built for CPUs"]);
    of_python(row, "RuntimeError: CUDA error: invalid device ordinal", &["`LOCAL_RANK`"]);
    let caught = ["RuntimeError: No CUDA GPUs are available", "ValueError: x"];
    assert_eq!(hint_of(Exit::Code(1), &caught, &Fake::default()), None, "the script went on");
}

const GLOO: &str = "RuntimeError: Gloo connectFullMesh failed with [/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed \
    out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:14748$1";

#[test]
fn gloo_on_loopback_hint_names_interface_option() {
    let row = "gloo on the loopback";
    of_python(row, GLOO, &["GLOO_SOCKET_IFNAME", "`--iface`"]);
    let fake = Fake { variables: vec![("GLOO_SOCKET_IFNAME", "lo")], ..Fake::default() };
    expect(hint_of(Exit::Code(1), &[GLOO], &fake), row, &["`GLOO_SOCKET_IFNAME` is `lo` here"]);
    let lost = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:24077";
    assert_eq!(hint_of(Exit::Code(1), &[lost], &fake), None, "a peer that has ended");
    let tail = [GLOO.to_owned()];
    let clues = Clues {
        exit: Exit::Code(1),
        program: Program::Python { python: Path::new("python") },
        message: None,
        tail: &tail,
        workers: 2,
        master: None,
        several_hosts: false,
    };
    assert_eq!(hint(&clues, &fake), None, "one host has one loopback");
}

#[test]
fn full_shared_memory_hint_has_size() {
    let row = "shared memory";
    let bus = "RuntimeError: DataLoader worker (pid 5) is killed by signal: Bus error. It is possible that dataloader's \
        workers are out of shared memory.";
    of_python(row, bus, &["may have been full (`/dev/shm` has 64 MiB)", "`--shm-size`", "`num_workers=0`"]);
    let full = "RuntimeError: unable to write to file </torch_1_2_0>: No space left on device (28)";
    of_python(row, full, &["may have been full"]);
    expect(hint_of(killed(libc::SIGBUS), &[full], &Fake::default()), "bus error", &["most often", "64 MiB"]);
    assert_eq!(hint_of(Exit::Code(1), &["OSError: No space left on device"], &Fake::default()), None);
}

#[test]
fn killed_data_loader_hint_guesses_memory_or_crash() {
    let line = "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed. ";
    of_python("data loader", line, &["most often for want of memory", "`num_workers`"]);
    for line in [
        "RuntimeError: DataLoader worker (pid(s) 5, 6) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid 5) is killed by signal: Segmentation fault. ",
    ] {
        of_python("data loader", line, &["probably by a crash", "`num_workers=0`"]);
    }
}

#[test]
fn address_in_use_hint_names_port_and_listener() {
    let row = "address in use";
    let store = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. \
        port: 29501, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use";
    of_python(row, store, &["a store of its own on port 29501, which is taken: leave", "(port 29500)"]);
    let fake = Fake { listens: Some((29_501, "nginx")), ..Fake::default() };
    expect(hint_of(Exit::Code(1), &[store], &fake), row, &["port 29501, which is taken by pid 7 (`nginx`)"]);
    let line =
        "OSError: [Errno 98] error while attempting to bind on address ('::', 29500): address already in use";
    of_python(row, line, &["port 29500 is `MASTER_PORT`"]);
    let fake = Fake { rank_0_has_store: true, ..Fake::default() };
    expect(hint_of(Exit::Code(1), &[line], &fake), row, &["rank 0 opens the store", "`--master-port`"]);
    let line = "[Errno 98] error while attempting to bind on address ('::', 80): address already in use";
    of_python(row, line, &["port 80 is taken, perhaps by another rank"]);
    let fake = Fake { listens: Some((80, "nginx")), ..Fake::default() };
    expect(hint_of(Exit::Code(1), &[line], &fake), row, &["port 80 is taken by pid 7 (`nginx`): end that"]);
    of_python(row, "OSError: [Errno 98] Address already in use", &["another rank", "`ss -ltnp`"]);
    let rust = "Error: Os { code: 98, kind: AddrInUse, message: \"Address already in use\" }";
    of_shell(row, 1, &[rust], &["`ss -ltnp`"]);
}

#[test]
fn missing_module_hint_names_python_that_has_it() {
    let row = "module missing";
    let line = "ModuleNotFoundError: No module named 'torch'";
    let own = "`/venv/bin/python` has no module `torch`";
    of_python(row, line, &[own, "`/venv/bin/python -m pip install torch`", "`PYTHON_EXEC=…`"]);
    let find = |fake: Fake| hint_of(Exit::Code(1), &[line], &fake);
    let pythons = vec![("/a/python", false), ("/b/python", true)];
    expect(
        find(Fake { pythons, ..Fake::default() }),
        row,
        &[own, "but `/b/python` has it: set `PYTHON_EXEC=/b/python`"],
    );
    let pythons = vec![("/a/python", false), ("/b/python", false)];
    expect(find(Fake { pythons, ..Fake::default() }), row, &["nor has `/a/python` or `/b/python`: install"]);
    expect(
        find(Fake { here: Some("torch.py"), ..Fake::default() }),
        row,
        &["`torch.py` is in the working folder"],
    );
    let variables = vec![("PYTHON_EXEC", "/venv/bin/python")];
    expect(find(Fake { variables, ..Fake::default() }), row, &["which `PYTHON_EXEC` names"]);
    of_python(row, "ModuleNotFoundError: No module named 'cv2'", &["pip install opencv-python"]);
    of_python(row, "/venv/bin/python: No module named train", &["`-m` looks", "finds no `train`"]);
    let nested = "/venv/bin/python: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named \
        'a')";
    of_python(row, nested, &["finds no `a`"]);
    of_shell(row, 1, &[line], &["the Python that it started has no module `torch`"]);
    of_python(row, "[rank0]: ModuleNotFoundError: No module named 'torch'", &[own]);
    let optional = ["ModuleNotFoundError: No module named 'apex'", "RuntimeError: bad data"];
    assert_eq!(hint_of(Exit::Code(1), &optional, &Fake::default()), None, "the script went on without it");
}

#[test]
fn missing_submodule_hint_does_not_advise_install() {
    for (line, part) in [
        (
            "ModuleNotFoundError: No module named 'json.nothere'; 'json' is not a package",
            "`json` has no submodule `nothere`: check the name, and rename a file `json.py` of your own",
        ),
        (
            "ModuleNotFoundError: No module named 'torch.a.b'",
            "`torch.a` has no submodule `b`: check the name",
        ),
        ("/venv/bin/python: No module named a.b", "`a` has no submodule `b`"),
        (
            "/venv/bin/python: No module named a.__main__; 'a' is a package and cannot be directly executed",
            "the package `a` has no `__main__.py`",
        ),
    ] {
        let (row, hint) = hint_of(Exit::Code(1), &[line], &Fake::default()).unwrap();
        assert!(row == "module missing" && hint.contains(part) && !hint.contains("install"), "{hint}");
    }
}

#[test]
fn file_that_shadows_module_is_named() {
    let line = "ImportError: cannot import name 'nn' from partially initialized module 'torch' (most likely due to a \
        circular import) (/work/torch.py)";
    of_python("module of another name", line, &["(`/work/torch.py`)", "`torch`", "rename"]);
    let line = "AttributeError: partially initialized module 'torch' has no attribute 'nn' (most likely due to a circular \
        import)";
    of_python("module of another name", line, &["`torch`", "rename"]);
}

#[test]
fn missing_library_is_named() {
    let row = "library missing";
    let line = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory";
    of_python(row, line, &["`libcudart.so.12`", "LD_LIBRARY_PATH"]);
    let line =
        "./a: error while loading shared libraries: libx.so.1: cannot open shared object file: No such file";
    of_shell(row, 127, &[line], &["`libx.so.1`"]);
    let line = "./a: /lib/libc.so.6: version `GLIBC_2.38' not found (required by ./a)";
    of_shell(row, 1, &[line], &["`GLIBC_2.38`", "newer system"]);
}

#[test]
fn shell_exit_code_of_crlf_script_hints_carriage_return() {
    let fake = Fake { has_carriage_return: true, ..Fake::default() };
    let run = Program::Other { path: Path::new("./run") };
    let env = ["/usr/bin/env: 'bash\\r': No such file or directory"];
    let option = ["/bin/bash: -: invalid option"];
    for (code, tail) in [(126, &env), (127, &env), (1, &option)] {
        let parts = ["`./run` ends in a carriage return (CRLF)", "`sed -i 's/\\r$//' ./run`"];
        expect(of_program(Exit::Code(code), tail, run, &fake), "carriage returns", &parts);
    }
    assert_eq!(of_program(Exit::Code(1), &[], run, &fake), None);
    for inner in [
        "run.sh: line 2: $'\\r': command not found",
        "x.sh: line 2: $'foo\\r': command not found",
        ": not found",
    ] {
        of_shell("command that cannot run", 127, &[inner], &["CRLF", "sed"]);
    }
}

#[test]
fn unrunnable_shell_command_is_named() {
    let row = "command that cannot run";
    for line in [
        "bash: line 1: trainer: command not found",
        "sh: 1: trainer: not found",
        "sh: 1: exec: trainer: not found",
        "/bin/sh: trainer: not found",
        "zsh:1: command not found: trainer",
        "/usr/bin/env: 'trainer': No such file or directory",
        "env: ‘trainer’: No such file or directory",
        "./run.sh: line 3: trainer: No such file or directory",
    ] {
        of_shell(row, 127, &["before", line], &["did not find the command `trainer`", "`PATH`"]);
    }
    of_shell(row, 126, &["sh: 1: ./a: Permission denied"], &["`chmod +x ./a`"]);
    let denied = ["sh: 1: ./a: Permission denied"];
    let run = Program::Other { path: Path::new("./run") };
    for (refusal, part) in [(NeverExecutable::Folder, "is a folder"), (NeverExecutable::Mount, "`noexec`")] {
        let fake = Fake { never_executable: Some(refusal), ..Fake::default() };
        let (_, hint) = of_program(Exit::Code(126), &denied, run, &fake).unwrap();
        assert!(hint.contains(part) && !hint.contains("chmod"), "{hint}");
    }
    of_shell(row, 126, &["bash: line 1: ./a: Is a directory"], &["`./a`, which is a folder"]);
    let line = "./run.sh: line 2: ./a: cannot execute binary file: Exec format error";
    of_shell(row, 126, &[line], &["`./a` is not a program of this machine"]);
}

#[test]
fn shell_exit_codes_give_guesses() {
    let row = "exit code of a shell";
    of_shell(row, 126, &[], &["most often"]);
    of_shell(
        row,
        127,
        &["cp: cannot stat 'x': No such file or directory"],
        &["most often", "`command not found`"],
    );
    of_shell(row, 137, &[], &["137 is 128 + 9 (SIGKILL): probably a command in it was killed", "`dmesg`"]);
    of_shell(row, 139, &[], &["139 is 128 + 11 (SIGSEGV): probably"]);
    of_shell(row, 134, &[], &["probably a command in it aborted"]);
    of_shell(row, 143, &[], &["probably", "from outside"]);
    expect(hint_of(Exit::Code(137), &[], &Fake::default()), row, &["probably the script passed on"]);
    for code in [1, 3, 125, 128, 160, 192, 255] {
        assert_eq!(hint_of(Exit::Code(code), &[], &Fake::default()), None, "{code}");
    }
}

#[test]
fn signal_hints_name_next_step() {
    let find = |number: i32, tail: &[&str], fake: &Fake| hint_of(killed(number), tail, fake);
    let plain = Fake::default();
    expect(
        find(libc::SIGSEGV, &[], &plain),
        "signal",
        &["probably crashed", "`PYTHONFAULTHANDLER=1`", "core file"],
    );
    expect(find(libc::SIGILL, &[], &plain), "signal", &["probably", "`lscpu`"]);
    expect(find(libc::SIGSYS, &[], &plain), "signal", &["seccomp"]);
    expect(find(libc::SIGXCPU, &[], &plain), "signal", &["`ulimit -t`"]);
    let with_faulthandler = Fake { variables: vec![("PYTHONFAULTHANDLER", "1")], ..Fake::default() };
    let traceback = ["Fatal Python error: Segmentation fault"];
    for (tail, fake) in
        [(&[][..], &with_faulthandler), (&traceback[..], &plain), (&traceback[..], &with_faulthandler)]
    {
        let (_, hint) = find(libc::SIGSEGV, tail, fake).unwrap();
        assert!(!hint.contains("PYTHONFAULTHANDLER") && hint.contains("core file"), "{hint}");
    }
    for number in [libc::SIGKILL, libc::SIGTERM, libc::SIGUSR1] {
        assert_eq!(find(number, &[GLOO], &plain).filter(|_| number == libc::SIGKILL), None);
        assert_eq!(find(number, &[], &plain), None);
    }
}

#[test]
fn hint_in_worker_output_suppresses_own_hint() {
    let tail = ["error: cannot bind: Address already in use", "hint: give another port"];
    assert_eq!(hint_of(Exit::Code(1), &tail, &Fake::default()), None);
}

#[test]
fn error_file_message_takes_precedence_over_output() {
    let tail = ["ValueError: from the output".to_owned()];
    let clues = Clues {
        exit: Exit::Code(1),
        program: Program::Python { python: Path::new("python") },
        message: Some("ModuleNotFoundError: No module named 'torch'"),
        tail: &tail,
        workers: 1,
        master: None,
        several_hosts: false,
    };
    expect(named_hint(&clues, &Fake::default()), "module missing", &["torch"]);
}

#[test]
fn worker_text_in_hint_is_cut_and_escaped() {
    let name = format!("\u{202e}{}", "x".repeat(500));
    let line = format!("sh: 1: {name}: not found");
    let run = Program::Other { path: Path::new("./run") };
    let (_, hint) = of_program(Exit::Code(127), &[&line], run, &Fake::default()).unwrap();
    assert!(hint.len() < 400 && hint.contains('…') && !hint.contains('\u{202e}'), "{hint}");
}

proptest::proptest! {
    #[test]
    fn arbitrary_output_does_not_panic(lines in proptest::collection::vec("\\PC{0,60}", 0..6), code in 0..256, number in 1..64) {
        let tokens = [
            "No module named '", "ModuleNotFoundError: ", "port", ":", "', ", "Address already in use", "gloo connectFullMesh [127.",
            "': not found", "partially initialized module 'x' circular import (",
        ];
        let tail: Vec<String> = lines.iter().zip(tokens).map(|(line, token)| format!("{token}{line}{token}")).collect();
        let tail: Vec<&str> = tail.iter().map(String::as_str).collect();
        let run = Program::Other { path: Path::new("x") };
        for exit in [Exit::Code(code), killed(number)] {
            let _ = (hint_of(exit, &tail, &Fake::default()), of_program(exit, &tail, run, &Fake::default()));
        }
    }
}
