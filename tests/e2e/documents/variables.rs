//! The variables in the documents: the launcher, its workers or the tests know each of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use harness::{Launch, Name, checkout, is_rankrun};

use super::{documents, words_with};

/// Variables of this project's own tests, builds and benches.
const TEST_VARIABLES: [&str; 6] =
    ["RANKRUN_BENCH_", "RANKRUN_E2E_", "RANKRUN_SEED", "RANKRUN_SOAK", "RANKRUN_TEST_", "RANKRUN_UPDATE"];

/// Names of other programs that our code does not have: variables, constants of C and macros.
const FOREIGN_NAMES: &str = "ASCEND_DEVICE_ID CUDARC_CUDA_VERSION DISABLE_KUBEFLOW_INTEGRATION EX_CONFIG EX_TEMPFAIL GPU_DEVICE_ORDINAL \
                             FOO_BAR HLS_MODULE_ID MEGATRON_LM_ NCCL_P2P_LEVEL ONEAPI_DEVICE_SELECTOR \
                             PARALLELISM_CONFIG_ PROPTEST_RNG_SEED PYTORCH_NVML_BASED_CUDA_CHECK SLURM_ARRAY_TASK_ID \
                             SO_PEERCRED";

/// What the launcher says of a variable of that name.
fn stderr_with_variable(variable: &str) -> String {
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--device-type", "cpu"]).env(variable, "1");
    // Of some variables the value is the name of a file.
    let folder = launch.temporary();
    launch.cwd(folder).args(["--no-python", "true"]).run().stderr()
}

#[test]
fn documented_variable_is_known() {
    if !is_rankrun() {
        return;
    }
    let unknown = "RANKRUN_NO_SUCH_VARIABLE";
    let message = stderr_with_variable(unknown);
    let refusal =
        message.split(unknown).nth(1).expect("an unknown variable is named").get(..15).expect("with a text");
    // An option of several nodes has no effect either in a job of one, for another reason.
    let no_option = |variable: &str| format!("`{variable}` has no effect: it is none of");
    let stderr = stderr_with_variable("PET_NO_SUCH_OPTION");
    assert!(stderr.contains(&no_option("PET_NO_SUCH_OPTION")), "{stderr}");
    let is_ours = |variable: &&str| !TEST_VARIABLES.iter().any(|own| variable.starts_with(own));
    for (path, text) in documents() {
        let upper = |letter: char| letter.is_ascii_uppercase() || letter == '_';
        for variable in words_with(&text, "RANKRUN_", upper).into_iter().filter(is_ours) {
            let stderr = stderr_with_variable(variable);
            assert!(!stderr.contains(&format!("{variable}{refusal}")), "{path} has `{variable}`: {stderr}");
        }
        for variable in words_with(&text, "PET_", upper) {
            let stderr = stderr_with_variable(variable);
            assert!(!stderr.contains(&no_option(variable)), "{path}: {stderr}");
        }
    }
}

/// The names in upper case with `_` that stand in backticks or in blocks of code.
fn upper_case_names(text: &str) -> BTreeSet<&str> {
    let code = text.split('`').skip(1).step_by(2);
    let words =
        code.flat_map(|code| code.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_'));
    let is_name = |word: &&str| {
        word.starts_with(|letter: char| letter.is_ascii_uppercase())
            && word.trim_end_matches('_').contains('_')
            && !word.contains(|letter: char| letter.is_ascii_lowercase())
    };
    words.filter(is_name).collect()
}

/// The upper-case names in the code of the product, of the examples and of the tests' fakes, without comments.
fn names_in_code() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for folder in ["launcher", "worker-runtime", "examples", "tests/fakes"] {
        add_names_below(&checkout().join(folder), &mut names);
    }
    names
}

fn add_names_below(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            add_names_below(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
            let text = fs::read_to_string(&path).expect("it is text");
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let words = code
                .flat_map(|line| line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_'));
            names.extend(words.filter(|word| word.contains('_')).map(str::to_owned));
        }
    }
}

#[test]
fn documented_upper_case_name_is_in_the_code() {
    let known = names_in_code();
    let is_own_option = |name: &str| name.starts_with("RANKRUN_") || name.starts_with("PET_");
    let is_known = |name: &str| {
        known.contains(name)
            || name.ends_with('_') && known.iter().any(|whole| whole.starts_with(name))
            || is_own_option(name)
            || FOREIGN_NAMES.split_whitespace().any(|foreign| foreign == name)
    };
    let documents = documents();
    let unknown = documents.iter().flat_map(|(path, text)| {
        let names = upper_case_names(text).into_iter().filter(|name| !is_known(name));
        names.map(move |name| format!("{path}: {name}"))
    });
    let unknown: Vec<_> = unknown.collect();
    assert!(unknown.is_empty(), "no code has {unknown:#?}");
    let cited: BTreeSet<_> = documents.iter().flat_map(|(_, text)| upper_case_names(text)).collect();
    for name in FOREIGN_NAMES.split_whitespace() {
        assert!(cited.contains(name) && !known.contains(name), "`{name}` is listed as foreign without need");
    }
}

#[test]
fn name_parser_finds_names_in_code_alone() {
    let text = "`CUDA_GONE=1 x`, `PET_`, `Some_Name`, LEFT_OUT, `x:NCCL_GONE`";
    assert_eq!(upper_case_names(text), ["CUDA_GONE", "NCCL_GONE"].into());
}
