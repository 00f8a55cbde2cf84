//! Entrypoints that are not programs for this machine: the message names what they are, and the way out.

use harness::{Launch, Name, Outcome, Scratch, can_use_namespaces, is_rankrun, python};

fn run(scratch: &Scratch, args: &[&str]) -> Outcome {
    let launch = Launch::new(Name::Rankrun).env("PYTHON_EXEC", python());
    launch.cwd(scratch.path()).args(args.iter().copied()).run()
}

/// The refusal of this program, which did not start.
#[track_caller]
fn assert_refused(scratch: &Scratch, args: &[&str], cause: &str, hint: &str) {
    let outcome = run(scratch, args);
    outcome
        .expect_exit_code(1)
        .expect_stderr(cause)
        .expect_stderr("\n\nhint: ")
        .expect_stderr(hint)
        .expect_absent("it ran");
    assert_eq!(outcome.stderr().matches("hint: ").count(), 1, "{outcome}");
}

#[test]
fn shell_script_without_run_permission_is_refused() {
    let scratch = Scratch::new();
    let _ = scratch.file("run.sh", "#!/bin/bash\nif true; then echo it ran; fi\n", 0o644);
    let _ = scratch.file("train", "#!/usr/bin/env -S bash -e\r\necho it ran\r\n", 0o644);
    assert_refused(
        &scratch,
        &["run.sh"],
        "the entrypoint `run.sh` is a script for `bash` and has no run permission",
        "`chmod +x run.sh`, or put `bash` in front: `rankrun bash run.sh`",
    );
    assert_refused(&scratch, &["./train"], "`./train` is a script for `bash`", "`rankrun bash ./train`");
}

#[test]
fn shell_script_without_shebang_is_refused() {
    let scratch = Scratch::new();
    let _ = scratch.file("run.sh", "if true; then echo it ran; fi\n", 0o755);
    let hint = "put `sh` in front: `rankrun sh run.sh`";
    assert_refused(&scratch, &["run.sh"], "`run.sh` is a shell script without a first line", hint);
    // The way out works.
    run(&scratch, &["sh", "run.sh"]).expect_exit_code(0).expect_stdout("it ran\n");
}

#[test]
fn python_script_without_run_permission_runs_with_python() {
    let scratch = Scratch::new();
    let polyglot = "#!/bin/sh\n'''exec' /long/python \"$0\" \"$@\"\n' '''\nprint('it ran')\n";
    for (name, text) in [
        ("plain", "print('it ran')\n"),
        ("first-line", "#!/usr/bin/env python3\nprint('it ran')\n"),
        ("with-uv", "#!/usr/bin/env -S uv run --script\nprint('it ran')\n"),
        ("polyglot", polyglot),
    ] {
        let script = scratch.file(name, text, 0o644);
        run(&scratch, &[&script]).expect_exit_code(0).expect_stdout("it ran\n");
    }
}

#[test]
fn shell_script_under_torchrun_name_runs_with_python() {
    let scratch = Scratch::new();
    let script = scratch.file("run.sh", "#!/bin/sh\nprint('it ran')\n", 0o644);
    Launch::new(Name::Torchrun)
        .env("PYTHON_EXEC", python())
        .args([script])
        .run()
        .expect_exit_code(0)
        .expect_stdout("it ran\n");
}

/// The start of an ELF file: its class in bits, machine, and the path of its loader, if it has one.
fn elf_header(bits: u8, machine: u16, loader: &str) -> Vec<u8> {
    let wide = bits == 64;
    let mut file = vec![0x7f, b'E', b'L', b'F', if wide { 2 } else { 1 }, 1, 1];
    file.resize(16, 0);
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let write_u32 = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
    // An address or offset.
    let long = |file: &mut Vec<u8>, value: u32| {
        file.extend(value.to_le_bytes());
        file.resize(file.len() + if wide { 4 } else { 0 }, 0);
    };
    let header: u16 = if wide { 64 } else { 52 };
    let entry: u16 = if wide { 56 } else { 32 };
    half(&mut file, 2);
    half(&mut file, machine);
    write_u32(&mut file, 1);
    [0, u32::from(header), 0].into_iter().for_each(|value| long(&mut file, value));
    write_u32(&mut file, 0);
    [header, entry, 1, 0, 0, 0].into_iter().for_each(|value| half(&mut file, value));
    assert_eq!(file.len(), usize::from(header));
    // PT_INTERP, readable.
    write_u32(&mut file, 3);
    if wide {
        write_u32(&mut file, 4);
    }
    let length = u32::try_from(loader.len()).expect("a short path") + 1;
    for value in [u32::from(header) + u32::from(entry), 0, 0, length, length] {
        long(&mut file, value);
    }
    if !wide {
        write_u32(&mut file, 4);
    }
    long(&mut file, 1);
    assert_eq!(file.len(), usize::from(header) + usize::from(entry));
    file.extend(loader.as_bytes());
    file.push(0);
    file
}

#[test]
fn program_of_other_architecture_names_both_architectures() {
    let scratch = Scratch::new();
    // RISC-V and IBM Z: no test machine is one.
    for (machine, name) in [(243, "riscv64"), (22, "s390x")] {
        let program = scratch.binary(name, &elf_header(64, machine, "/lib/ld.so"), 0o755);
        let here = std::env::consts::ARCH;
        let cause = format!("caused by: it is a program for {name}, and this machine is {here}");
        assert_refused(&scratch, &[&program], &cause, &format!("build or install it for {here}"));
    }
}

#[test]
fn program_with_missing_loader_names_loader() {
    let scratch = Scratch::new();
    let own = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let program = scratch.binary("program", &elf_header(64, own, "/lib/ld-of-another-system.so.1"), 0o755);
    let cause = "its loader `/lib/ld-of-another-system.so.1` does not exist";
    assert_refused(&scratch, &[&program], cause, "built for another system");
}

#[test]
fn script_with_missing_interpreter_names_interpreter() {
    let scratch = Scratch::new();
    let _ = scratch.file("train", "#!/opt/gone/bin/python3 -u\nprint('it ran')\n", 0o755);
    let cause = "its first line names `/opt/gone/bin/python3`, which does not exist";
    assert_refused(&scratch, &["train"], cause, "correct the first line of `./train`");
}

#[test]
fn script_with_crlf_shebang_names_carriage_return() {
    let scratch = Scratch::new();
    let _ = scratch.file("train", "#!/bin/sh\r\necho it ran\r\n", 0o755);
    let cause = "its first line ends in a carriage return (CRLF), so the kernel looks for `/bin/sh\\r`";
    assert_refused(&scratch, &["train"], cause, "`sed -i 's/\\r$//' ./train`");
    // By `env` it is not a failure to start: the shell's word is its exit status.
    let _ = scratch.file("by-env", "#!/usr/bin/env bash\r\necho it ran\r\n", 0o755);
    let outcome = run(&scratch, &["./by-env"]);
    outcome
        .expect_exit_code(127)
        .expect_stderr("ends in a carriage return (CRLF)")
        .expect_stderr("`sed -i 's/\\r$//' ./by-env`");
    outcome.expect_absent("command not found");
}

#[test]
fn script_with_nonexecutable_interpreter_names_interpreter() {
    let scratch = Scratch::new();
    let interpreter = scratch.file("python", "text", 0o644);
    let _ = scratch.file("train", &format!("#!{interpreter}\nprint('it ran')\n"), 0o755);
    let cause = format!("its first line names `{interpreter}`, which may not be executed");
    assert_refused(&scratch, &["train"], &cause, &format!("chmod +x {interpreter}"));
}

#[test]
fn foreign_or_empty_program_file_is_named() {
    let scratch = Scratch::new();
    for (name, bytes, cause) in [
        ("train.exe", &b"MZ\x90\0"[..], "it is a program for Windows"),
        ("mac", b"\xcf\xfa\xed\xfe\x0c\0\0\x01", "it is a program for macOS"),
        ("nothing", b"", "the file is empty"),
        ("text", b"echo it ran\n", "it is neither a program nor a script with a first line"),
    ] {
        let program = scratch.binary(name, bytes, 0o755);
        assert_refused(&scratch, &["--no-python", &program], cause, "hint: ");
    }
}

#[test]
fn python_of_other_architecture_is_named() {
    let scratch = Scratch::new();
    let python = scratch.binary("python", &elf_header(64, 243, "/lib/ld.so"), 0o755);
    let script = scratch.file("train.py", "print('it ran')\n", 0o644);
    let launch = Launch::new(Name::Rankrun).env("PYTHON_EXEC", &python).args([script]);
    let outcome = launch.run();
    outcome.expect_exit_code(1).expect_stderr(&format!("cannot start rank 0: `{python}`"));
    outcome.expect_stderr("it is a program for riscv64");
    if is_rankrun() {
        let launch =
            Launch::new(Name::Torchrun).env("PYTHON_EXEC", &python).args(["x.py"]).cwd(scratch.path());
        let _ = scratch.file("x.py", "", 0o644);
        launch.run().expect_exit_code(1).expect_stderr("it is a program for riscv64");
    }
}

#[test]
fn truncated_program_is_reported_as_damaged() {
    let scratch = Scratch::new();
    let whole =
        std::fs::read(std::env::current_exe().expect("this test has a path")).expect("it can be read");
    let _ = scratch.binary("cut", &whole[..100], 0o755);
    assert_refused(&scratch, &["--no-python", "./cut"], "it is damaged or cut off", "copy or build it again");
}

#[test]
fn program_on_noexec_mount_names_the_mount() {
    if !can_use_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    let folder = scratch.folder("data", 0o755);
    let mount = "mount -t tmpfs -o noexec none \"$1\" && cp /bin/true \"$1\" && shift && exec \"$@\"";
    let spaces = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh", &folder];
    let program = format!("{folder}/true");
    for args in [&["--no-python", &*program][..], &[&*program]] {
        let outcome = Launch::new(Name::Rankrun).under(spaces).args(args.iter().copied()).run();
        outcome
            .expect_stderr("mounted with `noexec`")
            .expect_stderr("hint: copy it to")
            .expect_absent("chmod");
    }
    let launch = Launch::standalone(Name::Rankrun, 1).under(spaces);
    let outcome = launch.shell(&format!("exec {program}")).run();
    outcome.expect_exit_code(126).expect_stderr("mounted with `noexec`: copy it").expect_absent("chmod");
}
