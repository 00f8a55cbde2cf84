//! The characters and cursor movements in the bytes of a stream. Pure.

use std::sync::Arc;

use crate::screen::cells::CellStyle;

/// A longer escape sequence has no effect.
const SEQUENCE_LIMIT: usize = 64;
/// Colours that add up to more are replaced by the last one.
const STYLE_LIMIT: usize = 128;

/// A control sequence that moves the cursor or erases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    Newline,
    Return,
    Tab,
    Left(usize),
    Right(usize),
    Column(usize),
    Up(usize),
    Down(usize),
    EraseRight,
    EraseLeft,
    EraseRow,
    EraseBelow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Character(char),
    Control(Control),
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum DecoderState {
    #[default]
    Ground,
    Escape,
    /// `ESC [`, up to a letter.
    Sequence,
    /// `ESC ]` and its like, up to a bell or `ESC \`.
    Text,
    TextEscape,
}

#[derive(Debug, Default)]
pub(super) struct Decoder {
    state: DecoderState,
    parameters: Vec<u8>,
    /// The beginning of a character of several bytes.
    partial: Vec<u8>,
    style: CellStyle,
}

impl Decoder {
    /// Whether no sequence and no character is unfinished.
    pub(super) fn is_idle(&self) -> bool {
        self.state == DecoderState::Ground && self.partial.is_empty()
    }

    /// The colours of the next character.
    pub(super) const fn style(&self) -> &CellStyle {
        &self.style
    }

    /// The tokens that a byte completes: a broken character is replaced, and the byte behind it may be one itself.
    pub(super) fn push(&mut self, byte: u8) -> [Option<Token>; 2] {
        match self.state {
            DecoderState::Ground => self.in_ground(byte),
            DecoderState::Escape => {
                self.state = match byte {
                    b'[' => DecoderState::Sequence,
                    b']' | b'P' | b'X' | b'^' | b'_' => DecoderState::Text,
                    _ => DecoderState::Ground,
                };
                [None, None]
            }
            DecoderState::Sequence => self.in_sequence(byte),
            DecoderState::Text => {
                match byte {
                    0x07 => self.state = DecoderState::Ground,
                    0x1b => self.state = DecoderState::TextEscape,
                    // A newline ends a text that its writer left open.
                    b'\n' => {
                        self.state = DecoderState::Ground;
                        return [Some(Token::Control(Control::Newline)), None];
                    }
                    _ => {}
                }
                [None, None]
            }
            DecoderState::TextEscape => {
                self.state = DecoderState::Ground;
                [None, None]
            }
        }
    }

    fn in_ground(&mut self, byte: u8) -> [Option<Token>; 2] {
        if byte >= 0x80 {
            return [self.in_character(byte), None];
        }
        let broken = (!self.partial.is_empty()).then_some(Token::Character(char::REPLACEMENT_CHARACTER));
        self.partial.clear();
        let token = match byte {
            b'\n' => Some(Token::Control(Control::Newline)),
            b'\r' => Some(Token::Control(Control::Return)),
            b'\t' => Some(Token::Control(Control::Tab)),
            0x08 => Some(Token::Control(Control::Left(1))),
            0x1b => {
                self.state = DecoderState::Escape;
                None
            }
            b' '..=b'~' => Some(Token::Character(char::from(byte))),
            _ => None,
        };
        [broken, token]
    }

    fn in_character(&mut self, byte: u8) -> Option<Token> {
        self.partial.push(byte);
        let character = match std::str::from_utf8(&self.partial) {
            Ok(text) => text.chars().next(),
            Err(error) if error.error_len().is_none() => return None,
            Err(_) => Some(char::REPLACEMENT_CHARACTER),
        };
        self.partial.clear();
        character.filter(|character| !character.is_control()).map(Token::Character)
    }

    fn in_sequence(&mut self, byte: u8) -> [Option<Token>; 2] {
        match byte {
            b'@'..=b'~' => {
                self.state = DecoderState::Ground;
                let parameters = std::mem::take(&mut self.parameters);
                if parameters.len() >= SEQUENCE_LIMIT {
                    return [None, None];
                }
                // Two of the movements go to the start of their row as well.
                let and_return = matches!(byte, b'E' | b'F').then_some(Token::Control(Control::Return));
                [self.control_of(byte, &parameters).map(Token::Control), and_return]
            }
            b'\n' => {
                self.state = DecoderState::Ground;
                self.parameters.clear();
                [Some(Token::Control(Control::Newline)), None]
            }
            _ => {
                if self.parameters.len() < SEQUENCE_LIMIT {
                    self.parameters.push(byte);
                }
                [None, None]
            }
        }
    }

    fn control_of(&mut self, last: u8, parameters: &[u8]) -> Option<Control> {
        let number = || std::str::from_utf8(parameters).ok()?.parse::<u16>().ok().map(usize::from);
        let count = number().unwrap_or(1).max(1);
        match (last, number().unwrap_or(0)) {
            (b'A' | b'F', _) => Some(Control::Up(count)),
            (b'B' | b'E', _) => Some(Control::Down(count)),
            (b'C', _) => Some(Control::Right(count)),
            (b'D', _) => Some(Control::Left(count)),
            (b'G', _) => Some(Control::Column(count - 1)),
            (b'K', 0) => Some(Control::EraseRight),
            (b'K', 1) => Some(Control::EraseLeft),
            (b'K', 2) => Some(Control::EraseRow),
            (b'J', 0) => Some(Control::EraseBelow),
            (b'm', _) => {
                self.set_style(parameters);
                None
            }
            _ => None,
        }
    }

    fn set_style(&mut self, parameters: &[u8]) {
        let is_reset = matches!(parameters, b"" | b"0" | b"00");
        let is_fresh =
            parameters.starts_with(b"0;") || self.style.as_ref().is_none_or(|all| all.len() > STYLE_LIMIT);
        let before = if is_fresh { None } else { self.style.take() };
        self.style = (!is_reset).then(|| {
            let mut all = before.map(|all| all.to_vec()).unwrap_or_default();
            all.extend_from_slice(b"\x1b[");
            all.extend_from_slice(parameters);
            all.push(b'm');
            Arc::from(all)
        });
    }
}

/// The position in `bytes` of the first movement to the start of the line, or up: an ordinary line has none. A
/// carriage return at the end may belong to a newline.
pub(super) fn first_rewrite(bytes: &[u8]) -> Option<usize> {
    memchr::memchr2_iter(b'\r', 0x1b, bytes).find(|&at| {
        let rest = &bytes[at..];
        match rest[0] {
            b'\r' => rest.iter().find(|byte| **byte != b'\r').is_some_and(|next| *next != b'\n'),
            _ => goes_up(rest),
        }
    })
}

/// Whether bytes at the start of a row are not part of a rewritten one, as far as they are there. Characters never are.
pub(super) fn begins_ordinary_line(bytes: &[u8]) -> bool {
    let line = &bytes[..memchr::memchr(b'\n', bytes).unwrap_or(bytes.len())];
    match line {
        [] | [b'\r', ..] | [0x1b] => false,
        [0x1b, b'[', rest @ ..] => {
            let is_whole = rest.iter().any(|byte| (b'@'..=b'~').contains(byte));
            is_whole && first_rewrite(line).is_none()
        }
        [first, ..] if first.is_ascii_control() => first_rewrite(line).is_none(),
        _ => true,
    }
}

/// Whether an escape sequence moves the cursor up.
fn goes_up(sequence: &[u8]) -> bool {
    let Some(rest) = sequence.strip_prefix(b"\x1b[") else { return false };
    let last = rest.iter().take(SEQUENCE_LIMIT).find(|byte| !byte.is_ascii_digit());
    matches!(last, Some(b'A' | b'F'))
}
