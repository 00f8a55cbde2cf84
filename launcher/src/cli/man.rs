//! `rankrun man`: the man page, of the same table as the help. The wheel has it too.

use clap_mangen::Man;
use clap_mangen::roff::Roff;

use super::help::{self, page_sections};
use super::other_launcher;
use super::subcommand;

/// The width of a text behind the page's margin on a terminal of 80 columns.
const TEXT_WIDTH: usize = 71;

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
        let mut command = command.clone().term_width(TEXT_WIDTH);
        let help = other_launcher::help(command.get_name(), Some(TEXT_WIDTH));
        preformatted(&mut roff, &help.unwrap_or_else(|| command.render_long_help().to_string()));
    }
    for (heading, text) in page_sections() {
        roff.control("SH", [heading.to_uppercase().as_str()]);
        text.trim().split("\n\n").for_each(|paragraph| add_paragraph(&mut roff, paragraph));
    }
    let _ = roff.to_writer(&mut page);
    String::from_utf8_lossy(&page).into_owned()
}

/// A paragraph that is filled, or a list of indented lines.
fn add_paragraph(roff: &mut Roff, paragraph: &str) {
    roff.control("PP", []);
    if paragraph.lines().any(|line| line.starts_with("  ")) {
        let lines: Vec<String> = paragraph.lines().map(broken).collect();
        preformatted(roff, &lines.join("\n"));
    } else {
        roff.text([clap_mangen::roff::roman(paragraph.replace('\n', " "))]);
    }
}

/// A line that goes on below where it is too long: a command behind a backslash, a text below its second column.
fn broken(line: &str) -> String {
    let text = line.trim_start();
    let indent = line.len() - text.len();
    let is_command = ["rankrun ", "torchrun "].iter().any(|name| text.starts_with(name));
    let (end, below) = match text.find("  ") {
        Some(gap) if !is_command => ("", line.len() - text[gap..].trim_start().len()),
        _ => (" \\", indent + 4),
    };
    let mut lines = vec![" ".repeat(indent)];
    let mut words = text.split(' ').peekable();
    while let Some(word) = words.next() {
        let last = lines.last().map_or("", String::as_str);
        let is_first = last.trim().is_empty();
        let room = TEXT_WIDTH - if words.peek().is_some() { end.len() } else { 0 };
        let width = last.chars().count() + usize::from(!is_first) + word.chars().count();
        if width > room && !is_first {
            lines.push(format!("{}{word}", " ".repeat(below)));
        } else if let Some(last) = lines.last_mut() {
            last.push_str(if is_first { "" } else { " " });
            last.push_str(word);
        }
    }
    lines.join(&format!("{end}\n"))
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
    fn line_of_man_page_fits_on_terminal_of_80_columns() {
        let page = page().replace(r"\-", "-").replace(r"\*(Aq", "'").replace(r"\&", "");
        for block in page.split(".nf\n").skip(1).filter_map(|rest| rest.split("\n.fi").next()) {
            let wide = block.lines().find(|line| line.chars().count() > TEXT_WIDTH);
            assert_eq!(wide, None);
        }
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
