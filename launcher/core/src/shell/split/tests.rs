use super::*;

#[test]
fn words_are_split_and_quoted_again() {
    for (line, words, again) in [
        ("a  b\tc", &["a", "b", "c"][..], "a b c"),
        ("a 'b c' \"d e\"f g\\ h ''", &["a", "b c", "d ef", "g h", ""], "a 'b c' 'd ef' 'g h' ''"),
        ("a \\\n  b # c\n", &["a", "b"], "a b"),
        (
            "a --n=$N \"${M:-8}\" $ARGS",
            &["a", "--n=$N", "${M:-8}", "$ARGS"],
            "a \"--n=$N\" \"${M:-8}\" $ARGS",
        ),
        ("\"$A\"b '$C' \\$D", &["${A}b", "$C", "$D"], "\"${A}b\" '$C' '$D'"),
        (
            "~/x a~b \"it's $X \\\" \\n\"",
            &["$HOME/x", "a~b", "it's $X \" \\n"],
            "\"$HOME/x\" 'a~b' \"it's $X \\\" \\\\n\"",
        ),
        ("$", &["$"], "'$'"),
        (
            "A=~/x B=x:~:~/y C=~ a ~ --b=~/x",
            &["A=$HOME/x", "B=x:$HOME:$HOME/y", "C=$HOME", "a", "$HOME", "--b=~/x"],
            "\"A=$HOME/x\" \"B=x:$HOME:$HOME/y\" \"C=$HOME\" a \"$HOME\" '--b=~/x'",
        ),
        (
            "*.txt '*.md' x{1..3} $D/*[ab] {} a[0",
            &["*.txt", "*.md", "x{1..3}", "$D/*[ab]", "{}", "a[0"],
            "*.txt '*.md' x{1..3} $D/*[ab] '{}' 'a[0'",
        ),
    ] {
        let found = split(line).unwrap();
        assert_eq!(found.words, words, "{line}");
        let quoted: Vec<String> = found.words.iter().map(|word| found.quote(word)).collect();
        assert_eq!(quoted.join(" "), again, "{line}");
    }
}

#[test]
fn operators_and_substitutions_are_refused_by_name() {
    for (line, part) in [
        ("a | tee log", "`|`"),
        ("a && b", "`&&`"),
        ("a 2>&1", "`>&`"),
        ("a $(nproc)", "`$(…)`"),
        ("a \"${X:-$(nproc)}\"", "`$(…)`"),
        ("a `nproc`", "`…`"),
        ("a\nb", "new line"),
        ("a 'b", "quote `'`"),
        ("a \"b", "quote `\"`"),
        ("a 'b c'*.txt", "`b c*.txt` has a pattern"),
        ("a {\"x\":1,\"y\":2}", "has a pattern"),
        ("a ~user/x b", "the `~` of `~user/x`"),
        ("A=~+ a", "the `~` of `A=~+`"),
        ("env A=~/x a", "the `~` of `A=~/x`"),
    ] {
        let error = split(line).unwrap_err().to_string();
        assert!(error.contains(part), "{line}: {error}");
    }
    assert_eq!(split("a 'b|c' \"d>e\" f\\;").unwrap().words, ["a", "b|c", "d>e", "f;"]);
}

#[test]
fn text_with_different_quotes_is_ambiguous() {
    for (line, text) in [
        ("a '*.py' *.py", Some("*.py")),
        ("a \"$X\" $X", Some("$X")),
        ("a \"$X\" '$X'", Some("$X")),
        ("a 'echo $X' $X '$X'", Some("$X")),
        ("a b*.py '*.py' 'x' x", None),
        ("a --n=$X \"$X\" '$Y'", None),
        ("a 'echo $X' $X", None),
        ("a \"$A\"b '$C' ${A}b", None),
    ] {
        assert_eq!(split(line).unwrap().ambiguous_text(|_| true), text, "{line}");
    }
    assert_eq!(split("a A=$X '$X'").unwrap().ambiguous_text(|_| true), Some("$X"));
    for (line, text) in [
        ("a 'A=$X' $X", Some("$X")),
        ("a A=$X '$X'", Some("$X")),
        ("a '$AB' \"$A\"", Some("$A")),
        ("a '$'\"$A\" $$", Some("$$")),
        ("a A=$X $X", None),
    ] {
        assert_eq!(split(line).unwrap().ambiguous_text(|_| false), text, "{line}");
    }
}

#[test]
fn word_in_single_quotes_keeps_them_beside_live_variable() {
    let mut found = split("sh -c 'echo $X' $X").unwrap();
    found.expansions.insert("$Y".to_owned());
    for (word, quoted) in [("echo $X", "'echo $X'"), ("$X", "$X"), ("A $X", "\"A $X\""), ("$Y", "\"$Y\"")] {
        assert_eq!(found.quote(word), quoted);
    }
    assert_eq!(found.quote_value("$X"), "\"$X\"");
}

proptest::proptest! {
    #[test]
    fn quoted_words_are_read_back(line in "[ab $'\"\\\\{}A~/\n#|&*,=:-]{0,24}") {
        if let Ok(found) = split(&line) {
            let quoted: Vec<String> = found.words.iter().map(|word| found.quote(word)).collect();
            let again = split(&quoted.join(" ")).unwrap();
            if found.ambiguous_text(|_| true).is_none() {
                proptest::prop_assert_eq!(again.forms, found.forms);
            }
            proptest::prop_assert_eq!(again.words, found.words);
        }
    }
}
