//! The one HTTP request that the server for `KubeflowCallback` answers: a POST with the token and a body.

use memchr::memmem;

use super::trainer_status::MAX_REPORT;

/// No head of a request is longer, in bytes.
pub const MAX_HEAD: usize = 16 << 10;

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is not HTTP, or its body is too long or has no length.
    BadRequest,
    /// It does not have the token.
    Unauthorized,
    /// It is not a POST.
    MethodNotAllowed,
}

impl Refusal {
    /// The number and words of the answer.
    #[must_use]
    pub const fn status(self) -> &'static str {
        match self {
            Self::BadRequest => "400 Bad Request",
            Self::Unauthorized => "401 Unauthorized",
            Self::MethodNotAllowed => "405 Method Not Allowed",
        }
    }
}

/// The body of the request that begins with these bytes; `None` if more bytes must come.
///
/// # Errors
/// The request is refused, perhaps before its end.
pub fn request_body<'a>(received: &'a [u8], token: &str) -> Result<Option<&'a [u8]>, Refusal> {
    const END: &[u8] = b"\r\n\r\n";
    let Some(length) = memmem::find(&received[..received.len().min(MAX_HEAD)], END) else {
        return if received.len() < MAX_HEAD { Ok(None) } else { Err(Refusal::BadRequest) };
    };
    let head = str::from_utf8(&received[..length]).map_err(|_| Refusal::BadRequest)?;
    let body = &received[length + END.len()..];
    Ok(body.get(..body_length(head, token)?))
}

fn body_length(head: &str, token: &str) -> Result<usize, Refusal> {
    let mut lines = head.split("\r\n");
    let request: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, _, version] = request[..] else { return Err(Refusal::BadRequest) };
    if !version.starts_with("HTTP/1.") {
        return Err(Refusal::BadRequest);
    }
    if method != "POST" {
        return Err(Refusal::MethodNotAllowed);
    }
    let (mut is_authorized, mut length) = (false, None);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(Refusal::BadRequest)?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "authorization" => {
                is_authorized = value.strip_prefix("Bearer ").is_some_and(|it| is_same(it, token));
            }
            "content-length" if length.is_none() => length = Some(value),
            "content-length" | "transfer-encoding" => return Err(Refusal::BadRequest),
            _ => {}
        }
    }
    if !is_authorized {
        return Err(Refusal::Unauthorized);
    }
    let length = length.and_then(|length| length.parse().ok());
    length.filter(|length| *length <= MAX_REPORT).ok_or(Refusal::BadRequest)
}

/// In a time that does not depend on the place of a difference.
fn is_same(text: &str, token: &str) -> bool {
    let bytes = text.bytes().zip(token.bytes());
    text.len() == token.len() && bytes.fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, headers: &str, body: &str) -> Vec<u8> {
        format!("{method} / HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n\r\n{body}").into_bytes()
    }

    #[test]
    fn post_with_token_gives_its_body_once_it_is_complete() {
        let headers = "content-length: 5\r\nAUTHORIZATION: Bearer abc\r\nConnection: close";
        let received = request("POST", headers, "hello");
        for length in 0..received.len() {
            assert_eq!(request_body(&received[..length], "abc"), Ok(None), "{length}");
        }
        assert_eq!(request_body(&received, "abc"), Ok(Some(b"hello".as_slice())));
    }

    #[test]
    fn other_requests_are_refused() {
        let token = "Authorization: Bearer abc";
        let with_token = |headers: &str| format!("{token}\r\n{headers}");
        for (method, headers, refusal) in [
            ("GET", with_token("Content-Length: 0"), Refusal::MethodNotAllowed),
            ("post", with_token("Content-Length: 0"), Refusal::MethodNotAllowed),
            ("POST", "Content-Length: 0".to_owned(), Refusal::Unauthorized),
            ("POST", "Content-Length: 0\r\nAuthorization: Bearer abd".to_owned(), Refusal::Unauthorized),
            ("POST", "Content-Length: 0\r\nAuthorization: Bearer ab".to_owned(), Refusal::Unauthorized),
            ("POST", "Content-Length: 0\r\nAuthorization: abc".to_owned(), Refusal::Unauthorized),
            ("POST", token.to_owned(), Refusal::BadRequest),
            ("POST", with_token("Content-Length: -1"), Refusal::BadRequest),
            ("POST", with_token("Content-Length: 65537"), Refusal::BadRequest),
            ("POST", with_token("Content-Length: 1\r\nContent-Length: 2"), Refusal::BadRequest),
            ("POST", with_token("Transfer-Encoding: chunked"), Refusal::BadRequest),
            ("POST", with_token("no header"), Refusal::BadRequest),
            ("POST /a", with_token("Content-Length: 0"), Refusal::BadRequest),
        ] {
            assert_eq!(
                request_body(&request(method, &headers, ""), "abc"),
                Err(refusal),
                "{method} {headers}"
            );
        }
        for garbage in
            [b"\r\n\r\n".as_slice(), b"\xff\xfe\r\n\r\n", b"\x16\x03\x01 a b\r\n\r\n", &[b'x'; MAX_HEAD]]
        {
            assert_eq!(request_body(garbage, "abc"), Err(Refusal::BadRequest));
        }
    }
}
