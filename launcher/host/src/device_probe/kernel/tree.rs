//! Reads the kernel's small files under a root folder. Their contents are not trusted: sizes, counts and texts are
//! bounded, and a value that does not fit counts as unknown.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::unistd::{AccessFlags, access};

/// The longest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// The most entries of a folder that are read.
const MAX_FOLDER_ENTRIES: usize = 8192;
/// The longest name that is reported, in characters.
const MAX_NAME_CHARACTERS: usize = 96;

/// The kernel's folders. All paths are absolute, as the kernel has them.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    root: &'a Path,
}

impl<'a> Tree<'a> {
    pub(super) const fn new(root: &'a Path) -> Self {
        Self { root }
    }

    /// Where a path is in truth.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The contents of a file, unchanged.
    ///
    /// # Errors
    /// The file cannot be read, is longer than allowed, or is not text.
    pub(super) fn read(&self, path: &str) -> io::Result<String> {
        // A pipe in place of a file must not stop the probe.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(self.resolve(path))?;
        let mut text = String::new();
        let length = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
        if length as u64 > MAX_FILE_BYTES {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "it is too long to be the kernel's"));
        }
        Ok(text)
    }

    /// A file without the blanks around it.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok().map(|text| text.trim().to_owned())
    }

    pub(super) fn number<N: FromStr>(&self, path: &str) -> Option<N> {
        self.text(path)?.parse().ok()
    }

    /// A hexadecimal number such as `0x1002`.
    pub(super) fn hex(&self, path: &str) -> Option<u32> {
        u32::from_str_radix(self.text(path)?.strip_prefix("0x")?, 16).ok()
    }

    /// A name that may be shown; none where nothing of it is left.
    pub(super) fn name(&self, path: &str) -> Option<String> {
        sanitize_name(&self.text(path)?)
    }

    /// The names in a folder.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.resolve(folder))?.take(MAX_FOLDER_ENTRIES);
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }

    /// The numbers of a folder's entries that are called `prefix` and a number, in ascending order.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(super) fn numbered(&self, folder: &str, prefix: &str) -> io::Result<Vec<u32>> {
        let names = self.names(folder)?;
        let mut numbers: Vec<u32> =
            names.iter().filter_map(|name| plain_number(name.strip_prefix(prefix)?)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// Whether this process may open a device.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check_openable(&self, node: &str) -> nix::Result<()> {
        access(&self.resolve(node), AccessFlags::R_OK | AccessFlags::W_OK)
    }

    /// Where a link points, as it is written.
    pub(super) fn link_target(&self, path: &str) -> Option<String> {
        fs::read_link(self.resolve(path)).ok()?.into_os_string().into_string().ok()
    }

    /// Resolves all links of a path, from the root of the tree.
    pub(super) fn canonical(&self, path: &str) -> Option<String> {
        let root = fs::canonicalize(self.root).ok()?;
        let path = fs::canonicalize(self.resolve(path)).ok()?;
        Some(format!("/{}", path.strip_prefix(root).ok()?.to_str()?))
    }
}

/// A number as the kernel writes it in names: digits, no leading zero.
pub(super) fn plain_number(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

/// An external text, made safe for a terminal.
pub(super) fn sanitize_name(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|one| !one.is_control()).take(MAX_NAME_CHARACTERS).collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
