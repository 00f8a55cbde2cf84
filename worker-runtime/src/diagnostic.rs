//! Hint and exit code of an error, beside its text.
//!
//! A wrapper such as thiserror's `#[error(transparent)]` forwards the text and the source of an
//! error and hides its type, so that a search by type would miss it. The query therefore
//! travels with the text: [`Details`] is part of an error's text, prints nothing, and answers
//! [`hint`] and [`exit_code`] from any depth.

use std::cell::RefCell;
use std::error::Error;
use std::fmt::{self, Write};

/// An error with a hint or an exit code. [`run`](crate::run) prints the hint and ends with the exit code.
///
/// The error's text must begin with its [`Details`]:
///
/// ```
/// use rankrun_worker::diagnostic::{self, Details, Diagnostic};
///
/// #[derive(Debug, thiserror::Error)]
/// #[error("{}the license server is away", Details(self))]
/// struct NoLicense;
///
/// impl Diagnostic for NoLicense {
///     fn hint(&self) -> Option<&str> {
///         Some("start it, and then the job again")
///     }
///     fn exit_code(&self) -> Option<u8> {
///         Some(42)
///     }
/// }
///
/// /// Any other type around it.
/// #[derive(Debug, thiserror::Error)]
/// #[error(transparent)]
/// struct Failed(NoLicense);
///
/// assert_eq!(Failed(NoLicense).to_string(), "the license server is away");
/// assert_eq!(diagnostic::hint(&Failed(NoLicense)).as_deref(), Some("start it, and then the job again"));
/// assert_eq!(diagnostic::exit_code(&Failed(NoLicense)), Some(42));
/// ```
pub trait Diagnostic {
    /// One thing that the user can do about the error.
    fn hint(&self) -> Option<&str> {
        None
    }

    /// Exit code of a worker that ends with this error. 0 counts as 1.
    fn exit_code(&self) -> Option<u8> {
        None
    }
}

/// The part of an error's text that prints nothing and answers queries.
pub struct Details<'a>(pub &'a dyn Diagnostic);

impl fmt::Display for Details<'_> {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        if ANSWERS.with_borrow(Option::is_none) {
            return Ok(());
        }
        // Before the borrow: an error may itself query another one.
        let (hint, exit_code) = (self.0.hint().map(str::to_owned), self.0.exit_code());
        ANSWERS.with_borrow_mut(|answers| {
            if let Some(answers) = answers {
                // The outermost error answers first and takes precedence.
                answers.hint = answers.hint.take().or(hint);
                answers.exit_code = answers.exit_code.or(exit_code);
            }
        });
        Ok(())
    }
}

impl fmt::Debug for Details<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hint, exit_code) = (self.0.hint(), self.0.exit_code());
        f.debug_struct("Details").field("hint", &hint).field("exit_code", &exit_code).finish()
    }
}

/// The hint of an error, or of its first source that has one.
#[must_use]
pub fn hint(error: &(dyn Error + 'static)) -> Option<String> {
    query_diagnostic(error).hint
}

/// The exit code of an error, or of its first source that has one.
#[must_use]
pub fn exit_code(error: &(dyn Error + 'static)) -> Option<u8> {
    query_diagnostic(error).exit_code
}

#[derive(Default)]
struct Answers {
    hint: Option<String>,
    exit_code: Option<u8>,
}

thread_local! {
    /// Present while this thread queries an error.
    static ANSWERS: RefCell<Option<Answers>> = const { RefCell::new(None) };
}

fn query_diagnostic(error: &(dyn Error + 'static)) -> Answers {
    let before = ANSWERS.replace(Some(Answers::default()));
    for error in std::iter::successors(Some(error), |&error| error.source()) {
        // Only the side effect counts.
        let _ = write!(Discard, "{error}");
    }
    ANSWERS.replace(before).unwrap_or_default()
}

struct Discard;

impl Write for Discard {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        Ok(())
    }
}

/// An error with the exit code of its worker, for restart rules such as `--restart-rules exit=42:requeue`.
///
/// ```no_run
/// use std::error::Error;
///
/// use rankrun_worker::{ExitError, ElasticRun, run_elastic};
///
/// fn main() -> std::process::ExitCode {
///     run_elastic(|_life: ElasticRun| -> Result<(), Box<dyn Error>> {
///         let _data = std::fs::read("/shared/data").map_err(|error| ExitError::new(42, error))?;
///         Ok(())
///     })
/// }
/// ```
#[derive(Debug)]
pub struct ExitError {
    exit_code: u8,
    error: Box<dyn Error + Send + Sync>,
}

impl ExitError {
    /// Adds an exit code to an error; 0 counts as 1.
    #[must_use]
    pub fn new(exit_code: u8, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { exit_code, error: error.into() }
    }
}

impl Diagnostic for ExitError {
    fn exit_code(&self) -> Option<u8> {
        Some(self.exit_code)
    }
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Details(self), self.error)
    }
}

/// The text is that of the inner error, so the source is too.
impl Error for ExitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{}no data", Details(self))]
    struct NoData;

    impl Diagnostic for NoData {
        fn hint(&self) -> Option<&str> {
            Some("mount it")
        }

        fn exit_code(&self) -> Option<u8> {
            Some(3)
        }
    }

    #[derive(Debug, thiserror::Error)]
    enum Outer {
        #[error(transparent)]
        Transparent(#[from] NoData),
        #[error(transparent)]
        Boxed(Box<dyn Error + Send + Sync>),
        #[error("the first step failed")]
        Source(#[source] Box<Self>),
        #[error("the first step failed: {0}")]
        Text(NoData),
        #[error("nothing is known")]
        Plain,
    }

    #[test]
    fn wrapped_error_keeps_hint() {
        let boxed = || Outer::Boxed(Box::new(Outer::Transparent(NoData)));
        for error in [
            Outer::Transparent(NoData),
            boxed(),
            Outer::Source(Box::new(boxed())),
            Outer::Source(Box::new(Outer::Text(NoData))),
            Outer::Boxed(Box::new(ExitError::new(3, boxed()))),
        ] {
            assert_eq!((hint(&error).as_deref(), exit_code(&error)), (Some("mount it"), Some(3)), "{error}");
            assert!(error.to_string().ends_with("no data") || error.source().is_some(), "{error}");
        }
        assert_eq!((hint(&Outer::Plain), exit_code(&Outer::Plain)), (None, None));
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{}the second step failed", Details(self))]
    struct Asks(#[source] Outer);

    impl Diagnostic for Asks {
        fn exit_code(&self) -> Option<u8> {
            exit_code(&self.0).map(|code| code + 1)
        }
    }

    #[test]
    fn delegating_error_keeps_own_answers() {
        let error = Outer::Boxed(Box::new(Asks(Outer::Transparent(NoData))));
        assert_eq!((hint(&error).as_deref(), exit_code(&error)), (Some("mount it"), Some(4)));
    }

    #[test]
    fn outermost_exit_code_wins_and_hint_is_kept() {
        let error = ExitError::new(42, Outer::Transparent(NoData));
        assert_eq!((hint(&error).as_deref(), exit_code(&error)), (Some("mount it"), Some(42)));
        assert_eq!((error.to_string().as_str(), error.source().is_none()), ("no data", true));
    }
}
