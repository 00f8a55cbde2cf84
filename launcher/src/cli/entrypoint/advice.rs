//! What an entrypoint's name shows of the mistake. Pure.

/// The hint for an entrypoint that is not there, by its name alone.
pub(super) fn hint_for_name(entrypoint: &str) -> Option<String> {
    if entrypoint.trim().is_empty() {
        return Some("if the value comes from a shell variable, check that it is set".to_owned());
    }
    if entrypoint.contains('$') {
        return Some("a shell replaces variables only outside of single quotes".to_owned());
    }
    if entrypoint.starts_with('~') {
        let path = entrypoint.replacen('~', "$HOME", 1);
        return Some(format!("a shell replaces `~` only outside of quotes: write `\"{path}\"`"));
    }
    if entrypoint.contains("://") {
        return Some("download it first: the entrypoint is a file on this machine".to_owned());
    }
    if entrypoint.starts_with('-') {
        return Some("options stand in front of `--`, the program behind it".to_owned());
    }
    if is_python(entrypoint) {
        return Some(format!(
            "leave `{entrypoint}` out: rankrun starts Python itself, as in `rankrun train.py`"
        ));
    }
    None
}

/// The hint for a module that is written as a path.
pub(super) fn hint_for_module(module: &str) -> String {
    if module.trim().is_empty() {
        return "if the value comes from a shell variable, check that it is set".to_owned();
    }
    let path = module.trim_start_matches("./").trim_end_matches('.');
    let name = path.strip_suffix(".py").unwrap_or(path).trim_end_matches('/').replace('/', ".");
    if path.ends_with(".py") {
        return format!("leave `-m` out to run the file, or write the module's name: `-m {name}`");
    }
    format!("write the module's name, with points: `-m {name}`")
}

/// More of a list, which stands in the place of the program.
pub(super) fn is_list(entrypoint: &str) -> bool {
    entrypoint.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b',' | b'-'))
}

/// `python`, `python3`, `python3.11`
pub(in crate::cli) fn is_python(word: &str) -> bool {
    let version = word.strip_prefix("python");
    version.is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entrypoint_hint_explains_mistake_in_name() {
        for (name, part) in [
            ("", "if the value comes from a shell variable"),
            ("$HOME/train.py", "outside of single quotes"),
            ("~/train.py", "`\"$HOME/train.py\"`"),
            ("https://a/train.py", "download it first"),
            ("--nnodes", "options stand in front of `--`"),
            ("python3.11", "rankrun starts Python itself"),
        ] {
            assert!(hint_for_name(name).is_some_and(|hint| hint.contains(part)), "{name}");
        }
        assert_eq!((hint_for_name("train.py"), hint_for_name("pythonic")), (None, None));
    }

    #[test]
    fn module_given_as_path_gets_dotted_name() {
        for (module, name) in
            [("train.py", "`-m train`"), ("pkg/train", "`-m pkg.train`"), ("./a/b.py", "`-m a.b`")]
        {
            assert!(hint_for_module(module).contains(name), "{module}: {}", hint_for_module(module));
        }
    }
}
