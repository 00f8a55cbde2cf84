//! First bytes of files that `execve` refuses, and the problem named for each.

use super::*;
use proptest::prelude::*;

const FOREIGN: u16 = if cfg!(target_arch = "x86_64") { 183 } else { 62 };

fn problem(errno: Errno, head: &[u8], there: &[&str]) -> Option<ExecProblem> {
    find(errno, head, &|path| there.iter().any(|there| Path::new(there) == path))
}

/// A little-endian header with one segment that names a loader.
fn elf(wide: bool, machine: u16, loader: &str) -> Vec<u8> {
    let (header, entry) = if wide { (64, 56) } else { (52, 32) };
    let mut file = vec![0; header + entry];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF");
    put(4, &[if wide { 2 } else { 1 }, 1]);
    put(18, &machine.to_le_bytes());
    let byte = |number: usize| u8::try_from(number).unwrap();
    put(if wide { 32 } else { 28 }, &[byte(header)]);
    put(if wide { 54 } else { 42 }, &[byte(entry)]);
    put(if wide { 56 } else { 44 }, &[1]);
    put(header, &[3]);
    put(header + if wide { 8 } else { 4 }, &[byte(header + entry)]);
    put(header + if wide { 32 } else { 16 }, &[byte(loader.len() + 1)]);
    file.extend(loader.as_bytes());
    file.push(0);
    file
}

#[test]
fn program_of_other_architecture_is_named() {
    let file = elf(true, FOREIGN, "/lib/ld.so");
    let machine = machine_name(FOREIGN, true);
    let found = problem(Errno::ENOEXEC, &file, &[]);
    assert_eq!(found, Some(ExecProblem::OtherMachine { machine: machine.clone() }));
    let text = found.unwrap().to_string();
    assert_eq!(text, format!("it is a program for {machine}, and this machine is {HERE}"));
    // s390x is big-endian.
    let big = [&b"\x7fELF\x02\x02\x01"[..], &[0; 9], &[0, 2, 0, 22]].concat();
    assert_eq!(
        problem(Errno::ENOEXEC, &big, &[]),
        Some(ExecProblem::OtherMachine { machine: "s390x".to_owned() })
    );
    let narrow = problem(Errno::ENOEXEC, &elf(false, 3, "/lib/ld-linux.so.2"), &[]).unwrap();
    assert!(narrow.to_string().contains("i386 (32-bit x86)"), "{narrow}");
    let own = MACHINES.iter().find(|(_, name)| *name == HERE).unwrap().0;
    assert_eq!(problem(Errno::ENOEXEC, &elf(true, own, "/lib/ld.so"), &[]), Some(ExecProblem::Damaged));
    assert!(machine_name(9999, true).contains("9999"));
}

#[test]
fn damaged_program_and_object_file_are_named() {
    let own = MACHINES.iter().find(|(_, name)| *name == HERE).unwrap().0;
    let whole = elf(true, own, "/lib/ld.so");
    for length in [4, 6, 19, 20, 64, 100] {
        let damaged = problem(Errno::ENOEXEC, &whole[..length], &[]).unwrap();
        assert_eq!(damaged.to_string(), "it is damaged or cut off", "{length}");
        assert!(damaged.hint(Path::new("x")).contains("build it again"));
    }
    for (kind, expected) in
        [(1, ExecProblem::NotLinked), (3, ExecProblem::Damaged), (4, ExecProblem::NotLinked)]
    {
        let mut file = whole.clone();
        file[16] = kind;
        assert_eq!(problem(Errno::ENOEXEC, &file, &[]), Some(expected));
    }
}

#[test]
fn noexec_mount_hint_does_not_mention_chmod() {
    assert!(!is_on_noexec_mount(Path::new("/nowhere")));
    assert!(!is_on_noexec_mount(&std::env::current_exe().unwrap()), "this test runs from there");
    let text = ExecProblem::NoExecMount.to_string();
    let hint = ExecProblem::NoExecMount.hint(Path::new("x"));
    assert!(text.contains("`noexec`") && hint.contains("copy it") && !hint.contains("chmod"), "{hint}");
}

#[test]
fn missing_loader_is_named() {
    let loader = "/lib/ld-musl-x86_64.so.1";
    let expected = ExecProblem::NoLoader { loader: loader.to_owned(), narrow: false };
    assert_eq!(problem(Errno::ENOENT, &elf(true, 62, loader), &[]), Some(expected));
    assert_eq!(problem(Errno::ENOENT, &elf(true, 62, loader), &[loader]), None, "something else is missing");
    let narrow = problem(Errno::ENOENT, &elf(false, 3, "/lib/ld-linux.so.2"), &[]).unwrap();
    assert_eq!(narrow.to_string(), "it is a 32-bit program; its loader `/lib/ld-linux.so.2` does not exist");
    assert!(narrow.hint(Path::new("x")).contains("libc6-i386"));
}

#[test]
fn shebang_is_parsed_like_the_kernel() {
    for (line, expected) in [
        ("#!/bin/sh", Some(("/bin/sh", false))),
        ("#! \t/bin/sh -e\nx", Some(("/bin/sh", false))),
        ("#!/bin/sh\r\nx\r\n", Some(("/bin/sh", true))),
        ("#!/usr/bin/env bash\r\n", Some(("/usr/bin/env", true))),
        ("#!\n/bin/sh", None),
        ("#!", None),
        ("/bin/sh", None),
    ] {
        let found = interpreter(line.as_bytes());
        assert_eq!(found.as_ref().map(|(path, crlf)| (&**path, *crlf)), expected, "{line:?}");
    }
}

#[test]
fn script_interpreter_problem_is_named() {
    let interpreter = || "/bin/sh".to_owned();
    let none = ExecProblem::NoInterpreter { interpreter: interpreter() };
    assert_eq!(problem(Errno::ENOENT, b"#!/bin/sh\n", &[]), Some(none.clone()));
    assert_eq!(problem(Errno::ENOENT, b"#!/bin/sh\r\n", &[]), Some(none), "it is missing without it too");
    let crlf = ExecProblem::CarriageReturn { interpreter: interpreter() };
    assert_eq!(problem(Errno::ENOENT, b"#!/bin/sh\r\n", &["/bin/sh"]), Some(crlf.clone()));
    assert!(crlf.hint(Path::new("a b")).contains("a b"));
    let closed = ExecProblem::InterpreterNotExecutable { interpreter: interpreter() };
    assert_eq!(problem(Errno::EACCES, b"#!/bin/sh\n", &["/bin/sh"]), Some(closed));
    let of_interpreter = problem(Errno::ENOEXEC, b"#!/bin/sh\n", &["/bin/sh"]);
    assert!(matches!(of_interpreter, Some(ExecProblem::OfInterpreter { .. })), "{of_interpreter:?}");
}

#[test]
fn unknown_file_formats_are_distinguished() {
    for (head, text) in [
        (&b"MZ\x90"[..], "it is a program for Windows"),
        (b"\xcf\xfa\xed\xfe", "it is a program for macOS"),
        (b"", "the file is empty"),
        (b"echo", "it is neither a program nor a script with a first line such as `#!/bin/sh`"),
        (b"#!", "it is neither a program nor a script with a first line such as `#!/bin/sh`"),
    ] {
        let found = problem(Errno::ENOEXEC, head, &[]).unwrap();
        assert_eq!(found.to_string(), text);
        assert!(!found.hint(Path::new("x")).is_empty());
    }
    assert_eq!(problem(Errno::E2BIG, b"MZ", &[]), None);
    assert_eq!(ExecProblem::find(Path::new("/nowhere"), &Errno::ENOENT.into()), None);
}

proptest! {
    #[test]
    fn arbitrary_elf_header_does_not_panic(tail in prop::collection::vec(any::<u8>(), 0..200), wide in any::<bool>()) {
        let class = if wide { 2 } else { 1 };
        let head = [&b"\x7fELF"[..], &[class, 1], &tail].concat();
        for errno in [Errno::ENOENT, Errno::ENOEXEC, Errno::EACCES] {
            let _ = problem(errno, &head, &[]);
        }
    }
}
