//! Modules that Python does not find. Pure.

use super::text::{between, shown};
use super::{Clues, OtherPython, Program, Surroundings};

/// Modules and the packages that provide them under another name.
const PACKAGES: [(&str, &str); 6] = [
    ("PIL", "pillow"),
    ("cv2", "opencv-python"),
    ("dateutil", "python-dateutil"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("yaml", "pyyaml"),
];
const MOST_LISTED: usize = 3;

/// A file of the user's that has the name of a module (`torch.py`).
pub(super) fn shadowed_module(clues: &Clues<'_>, _: &dyn Surroundings) -> Option<String> {
    let error = clues.python_error()?;
    let is_circular = error.contains("partially initialized module") && error.contains("circular import");
    let module = between(error, "module '", "'").filter(|_| is_circular)?;
    let file = error.rsplit_once('(').map(|(_, file)| file.trim_end_matches(')'));
    let file = file.filter(|file| file.ends_with(".py")).map(|file| format!(" (`{}`)", shown(file)));
    Some(format!(
        "a file of the script{} may hide the module `{}`, as `torch.py` beside the script hides PyTorch: rename it",
        file.unwrap_or_default(),
        shown(module)
    ))
}

/// A module that this Python does not have: another may.
pub(super) fn missing_module(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<String> {
    let imported = clues.python_error().and_then(module_of_error);
    let module = imported.or_else(|| clues.last_line(module_of_option))?;
    let name = module.split(';').next().unwrap_or_default();
    let root = name.split('.').next().filter(|root| is_identifier(root))?;
    // Python names only the part that it does not find: it has found what is before the last dot.
    if let Some((parent, child)) = name.rsplit_once('.') {
        let is_plain_module = clues.output_contains(&["is not a package"]);
        return Some(missing_submodule(parent, child, is_plain_module));
    }
    let Program::Python { python } = clues.program else {
        return Some(format!(
            "the Python that it started has no module `{root}`: start that of the right environment by its path, or \
             activate the environment"
        ));
    };
    let source = match surroundings.non_empty_variable("PYTHON_EXEC") {
        Some(_) => ", which `PYTHON_EXEC` names,",
        None => "",
    };
    let fact = format!("`{}`{source} has no module `{root}`", python.display());
    if let Some(file) = surroundings.local_module_file(root) {
        return Some(format!(
            "{fact}: `{file}` is in the working folder, where this Python does not look; `PYTHONPATH=.` adds the folder"
        ));
    }
    let other_pythons = surroundings.other_pythons(root);
    if let Some(found) = other_pythons.iter().find(|other| other.has_module) {
        let found = found.path.display();
        return Some(format!(
            "{fact}, but `{found}` has it: set `PYTHON_EXEC={found}`, or activate its environment"
        ));
    }
    if imported.is_none() {
        return Some(format!(
            "`-m` looks in the working folder and among the packages of `{}`{source} and finds no `{root}`: check the \
             name and the folder, or install it there",
            python.display()
        ));
    }
    let package = PACKAGES.iter().find(|(name, _)| *name == root).map_or(root, |(_, package)| package);
    Some(format!(
        "{fact}{}: install it (`{} -m pip install {package}`), or name another Python with `PYTHON_EXEC=…`",
        listed(&other_pythons),
        python.display()
    ))
}

/// `pip install` of the parent would install another package of that name.
fn missing_submodule(parent: &str, child: &str, is_plain_module: bool) -> String {
    let root = shown(parent.split('.').next().unwrap_or_default());
    let (parent, child) = (shown(parent), shown(child));
    if child == "__main__" {
        return format!(
            "the package `{parent}` has no `__main__.py`: name one of its modules, as in `-m {parent}.train`"
        );
    }
    let fact = format!("`{parent}` has no submodule `{child}`: check the name");
    if is_plain_module {
        return format!(
            "{fact}, and rename a file `{root}.py` of your own, which may hide the package `{root}`"
        );
    }
    format!("{fact}, and the version of `{root}`")
}

fn listed(pythons: &[OtherPython]) -> String {
    let names: Vec<String> =
        pythons.iter().take(MOST_LISTED).map(|other| format!("`{}`", other.path.display())).collect();
    if names.is_empty() { String::new() } else { format!(", nor has {}", names.join(" or ")) }
}

/// `ModuleNotFoundError: No module named 'torch'`
fn module_of_error(error: &str) -> Option<&str> {
    let is_import = error.starts_with("ModuleNotFoundError:") || error.starts_with("ImportError:");
    between(error, "No module named '", "'").filter(|_| is_import)
}

/// The module of an error of `python -m`: `/usr/bin/python3: No module named train`.
fn module_of_option(line: &str) -> Option<&str> {
    let (python, message) = line.split_once(": ")?;
    if !python.contains("python") || python.contains(' ') {
        return None;
    }
    let nested = || between(message, "(ModuleNotFoundError: No module named '", "')");
    message.strip_prefix("No module named ").or_else(nested).map(str::trim)
}

fn is_identifier(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|letter: char| letter.is_ascii_digit())
        && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}
