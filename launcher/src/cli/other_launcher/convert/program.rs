//! The program that another launcher starts, as rankrun's entrypoint.

use super::Environment;
use super::wrapped::{assignment, file_name};
use crate::cli::entrypoint::is_python;
use crate::cli::error::CliError;

/// The words of the entrypoint and its arguments; `env A=B` in front of it and the Python go to the environment.
///
/// # Errors
/// There is no program.
pub(super) fn entrypoint(
    launcher: &str,
    mut program: &[String],
    environment: &mut Environment,
) -> Result<Vec<String>, CliError> {
    if let [env, behind @ ..] = program
        && env == "env"
        && behind.first().is_some_and(|word| assignment(word).is_some())
    {
        let assigned = behind.iter().map_while(|word| assignment(word));
        environment.extend(assigned);
        program = &behind[behind.iter().take_while(|word| assignment(word).is_some()).count()..];
    }
    let Some((first, rest)) = program.split_first() else {
        let hint = format!("name it behind the options, as in `{launcher} -n 2 python train.py`");
        return Err(CliError::refused(format!("the line of `{launcher}` has no program to start"), hint));
    };
    if first.ends_with(".py") {
        return Ok(separated(std::slice::from_ref(first), rest));
    }
    if is_python(file_name(first))
        && let Some(words) = script_of_python(rest)
    {
        environment.extend(python_variable(first));
        return Ok(words);
    }
    Ok(separated(&["--no-python".to_owned(), first.clone()], rest))
}

/// What Python runs, if it has no option that rankrun does not give it. It gives `-u`.
fn script_of_python(words: &[String]) -> Option<Vec<String>> {
    let (first, rest) = words.split_first()?;
    match first.as_str() {
        "-u" => script_of_python(rest),
        "-m" => {
            let (module, arguments) = rest.split_first()?;
            Some(separated(&["-m".to_owned(), module.clone()], arguments))
        }
        option if option.starts_with('-') => None,
        _ => Some(separated(std::slice::from_ref(first), rest)),
    }
}

/// rankrun drops a `--` behind the entrypoint.
fn separated(entrypoint: &[String], arguments: &[String]) -> Vec<String> {
    let separator = arguments.first().filter(|first| *first == "--").cloned();
    entrypoint.iter().cloned().chain(separator).chain(arguments.iter().cloned()).collect()
}

/// `PYTHON_EXEC`, where the line names another Python than the one that rankrun finds by itself.
pub(super) fn python_variable(python: &str) -> Option<(String, Option<String>)> {
    let is_default = ["python", "python3"].contains(&python);
    (!is_default).then(|| ("PYTHON_EXEC".to_owned(), Some(python.to_owned())))
}
