//! `rankrun man`: the man page, of the same table as the help. The wheel has it too.

use clap_mangen::Man;
use clap_mangen::roff::Roff;

use super::help::{self, page_sections};
use super::other_launcher;
use super::subcommand;

/// In columns, without the margin.
const MAN_WIDTH: usize = 78;

/// The page in roff.
pub(super) fn page() -> String {
    let command = help::command_of_launch();
    let mut page = Vec::new();
    let man = Man::new(command).title("RANKRUN");
    // Writing into memory cannot fail.
    let _ = man.render_title(&mut page);
    // A name that is copied from the page has no hyphens of a line's end.
    page.extend_from_slice(b".nh\n");
    let _ = man.render_name_section(&mut page);
    let _ = man.render_synopsis_section(&mut page);
    let _ = man.render_options_section(&mut page);
    let mut roff = Roff::new();
    for command in subcommand::all().filter(|command| command.get_name() != "run") {
        roff.control("SH", [format!("rankrun {}", command.get_name()).to_uppercase().as_str()]);
        let mut command = command.clone().term_width(MAN_WIDTH);
        let help = other_launcher::help(command.get_name(), Some(MAN_WIDTH));
        preformatted(&mut roff, &help.unwrap_or_else(|| command.render_long_help().to_string()));
    }
    for (heading, text) in page_sections() {
        roff.control("SH", [heading.to_uppercase().as_str()]);
        preformatted(&mut roff, text.trim());
    }
    let _ = roff.to_writer(&mut page);
    String::from_utf8_lossy(&page).into_owned()
}

/// Lines that stay as they are.
fn preformatted(roff: &mut Roff, text: &str) {
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([clap_mangen::roff::roman(line)]);
    }
    roff.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::option::{LaunchOption, options};
    use rankrun_core::spec::CliFlavor;

    /// `RANKRUN_UPDATE=1` writes the wheel's page anew.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test that rewrites its file")]
    fn man_page_of_wheel_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/wheel-data/data/share/man/man1/rankrun.1");
        if std::env::var_os("RANKRUN_UPDATE").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        assert!(page() == std::fs::read_to_string(path).unwrap(), "RANKRUN_UPDATE=1 writes it");
    }

    #[test]
    fn man_page_has_every_option_and_subcommand() {
        let page = page().replace(r"\-", "-");
        assert!(page.contains(".TH RANKRUN 1"), "{}", &page[..300]);
        for option in options(CliFlavor::Rankrun) {
            assert!(page.contains(&format!("--{}", option.long_name())), "{}", option.long_name());
        }
        for command in subcommand::all().filter(|command| command.get_name() != "run") {
            let heading = format!("RANKRUN {}", command.get_name().to_uppercase());
            assert!(page.contains(&heading), "{heading}");
        }
    }
}
