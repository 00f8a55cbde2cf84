use proptest::prelude::*;

use super::*;

fn list(text: &str) -> Vec<SelectorEntry> {
    match text.parse() {
        Ok(Selector::List(entries)) => entries,
        other => panic!("`{text}` is not a list: {other:?}"),
    }
}

fn exclusion(entry: SelectorEntry) -> SelectorEntry {
    SelectorEntry::Except(Box::new(entry))
}

fn pci(text: &str) -> SelectorEntry {
    SelectorEntry::Pci(text.parse().unwrap())
}

#[test]
fn every_selector_form_is_parsed() {
    assert_eq!("all".parse(), Ok(Selector::All));
    assert_eq!(" idle ".parse(), Ok(Selector::Idle));
    assert_eq!("none".parse(), Ok(Selector::None));
    assert_eq!(list("3,1"), [SelectorEntry::Index(3), SelectorEntry::Index(1)]);
    assert_eq!(list("0-3, 7-5"), [SelectorEntry::Range(0, 3), SelectorEntry::Range(7, 5)]);
    assert_eq!(list("-2"), [exclusion(SelectorEntry::Index(2))]);
    assert_eq!(list("-2-4"), [exclusion(SelectorEntry::Range(2, 4))]);
    assert_eq!(list("0-7,-3"), [SelectorEntry::Range(0, 7), exclusion(SelectorEntry::Index(3))]);
    assert_eq!(list("1:0,-1:2"), [SelectorEntry::Mig(1, 0), exclusion(SelectorEntry::Mig(1, 2))]);
    assert_eq!(
        list("GPU-4f8a,MIG-0c"),
        [SelectorEntry::Uuid("GPU-4f8a".into()), SelectorEntry::Uuid("MIG-0c".into())]
    );
    assert_eq!(list("-gpu-4F"), [exclusion(SelectorEntry::Uuid("gpu-4F".into()))]);
    assert_eq!(list("MIG-GPU-4f8a-11/1/0"), [SelectorEntry::Uuid("MIG-GPU-4f8a-11/1/0".into())]);
    for text in ["0000:1b:00.0", "1b:00.0", "00000000:1B:00.0"] {
        assert_eq!(list(text), [pci("0000:1b:00.0")]);
    }
    assert_eq!(list("0001:1b:00.0"), [pci("0001:1b:00.0")]);
}

#[test]
fn invalid_list_error_names_entry() {
    let refused = |text: &str| text.parse::<Selector>().unwrap_err();
    let junk = |entry: &str| SelectorError::Junk { entry: entry.to_owned() };
    assert_eq!(refused(""), SelectorError::Empty);
    assert_eq!(refused("  "), SelectorError::Empty);
    assert_eq!(refused("0,,1"), SelectorError::EmptyEntry { list: "0,,1".into(), place: 2 });
    assert_eq!(refused("0,"), SelectorError::EmptyEntry { list: "0,".into(), place: 2 });
    assert_eq!(refused("-"), SelectorError::LoneDash);
    assert_eq!(refused("0,-"), SelectorError::LoneDash);
    for text in
        ["x", "--2", "1--2", "0..3", "0x1", "+1", "1.0", "GPU-", "GPU-a b", "1:x", "1-2-3", "é", "GPUé"]
    {
        assert_eq!(refused(text), junk(text), "{text}");
    }
    assert_eq!(refused("4294967296"), SelectorError::OutOfRange { entry: "4294967296".into() });
    assert_eq!(refused("0-99999999999"), SelectorError::OutOfRange { entry: "0-99999999999".into() });
    assert_eq!(refused("0,0"), SelectorError::Repeated { entry: "0".into() });
    assert_eq!(refused("0,00"), SelectorError::Repeated { entry: "00".into() });
    assert_eq!(refused("0,all"), SelectorError::NotAlone { word: "all".into(), list: "0,all".into() });
    assert!(refused("all,-2").hint().contains("`-2` is every device but 2"));
}

#[test]
fn device_type_prefix_error_shows_right_form() {
    let hint = |text: &str| text.parse::<Selector>().unwrap_err().hint();
    assert_eq!(hint("cuda:1,2"), "write it as `--device-type cuda --devices 1,2`");
    assert_eq!(hint("cuda:1,cuda:2"), "write it as `--device-type cuda --devices 1,2`");
    assert_eq!(hint("xpu:0"), "write it as `--device-type xpu --devices 0`");
    assert_eq!(hint("gpu:1"), "write it as `--devices 1`");
    assert_eq!(hint("hip:1"), "write it as `--device-type rocm --devices 1`");
    assert_eq!(hint("cpu"), "write it as `--device-type cpu`");
}

proptest! {
    #[test]
    fn selector_round_trips(text in "(-?([0-9]{1,3}|[0-9]{1,2}-[0-9]|GPU-[0-9a-f]{1,4}|[0-9]:[0-9]|0[0-9]:00\\.[0-7]),){0,4}[0-9]{4}") {
        if let Ok(selector) = text.parse::<Selector>() {
            prop_assert_eq!(selector.to_string().parse(), Ok(selector));
        }
    }

    #[test]
    fn any_selector_text_does_not_panic(text in "\\PC{0,12}") {
        let _ = text.parse::<Selector>().map_err(|error| (error.to_string(), error.hint()));
    }
}
