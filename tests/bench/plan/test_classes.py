"""Which class of a head a folder holds, and what is said when nobody can tell."""

import pytest

from opentta.bench.plan.classes import folder_classes, read_classes
from opentta.errors import ConfigError, DataError

BREEDS = [["basset", "basset hound"], ["beagle"], ["crane"], ["pug", "pug-dog"], ["crane", "lift"]]


def test_names_match_whatever_their_case_and_their_hyphens():
    found = folder_classes(["Basset_Hound", "PUG dog"], 5, BREEDS)
    assert found.classes == {"Basset_Hound": 0, "PUG dog": 3}
    assert found.rule == "names of classes: 0 = Basset_Hound, 3 = PUG dog"


def test_a_name_of_two_classes_asks_for_an_index():
    with pytest.raises(ConfigError, match="'crane' is the name of the classes 2 and 4; write"):
        folder_classes(["beagle", "crane"], 5, BREEDS)
    assert folder_classes(["crane"], 5, BREEDS, {"crane": "4"}, "c.csv").classes == {"crane": 4}


def test_indices_are_taken_where_all_folders_are_some():
    assert folder_classes(["10", "2"], 20, None).classes == {"10": 10, "2": 2}


def test_as_many_folders_as_classes_come_in_sorted_order():
    found = folder_classes(["cat", "ant", "bee"], 3, None)
    assert found.classes == {"ant": 0, "bee": 1, "cat": 2}
    assert "sorted order" in found.rule and "0 = ant, 1 = bee, 2 = cat" in found.rule
    assert folder_classes(["1", "2", "3"], 3, None).classes == {"1": 0, "2": 1, "3": 2}


def test_folders_that_the_head_does_not_know_are_named_with_the_remedy():
    with pytest.raises(ConfigError) as error:
        folder_classes(["beagel", "pug"], 5, BREEDS)
    for part in ("head of 5 classes", "got 2 folders", "'beagel' is not one", "mean 'beagle'"):
        assert part in str(error.value)
    assert "--classes FILE" in str(error.value) and "--weights" in str(error.value)
    with pytest.raises(ConfigError, match="got 3 folders, of which 'a', 'b', 'c' are not;"):
        folder_classes(["a", "b", "c"], 5, None)


def test_a_file_says_what_the_names_do_not():
    given = {"hush puppy": "basset hound", "flat face": "3"}
    found = folder_classes(["beagle", "flat face", "hush puppy"], 5, BREEDS, given, "c.csv")
    assert found.classes == {"beagle": 1, "flat face": 3, "hush puppy": 0}
    assert found.rule.startswith("c.csv: 0 = hush puppy, 1 = beagle")


@pytest.mark.parametrize(
    ("given", "synonyms", "message"),
    [
        ({"a": "begle"}, BREEDS, "c.csv: unknown class 'begle': did you mean 'beagle'"),
        ({"a": "5"}, BREEDS, "c.csv: expected an index from 0 to 4 for the folder a, .* got 5"),
        ({"a": "beagle"}, None, "expected an index from 0 to 4 .* no names that are known"),
        ({"a": "1", "c": "2"}, None, "the file does not name the folder b, which is no class"),
        ({"0": "a", "1": "b"}, None, "expected folders such as 'a', 'b' in the first column"),
    ],
)
def test_a_file_that_names_what_is_not_there_is_refused(given, synonyms, message):
    with pytest.raises((ConfigError, DataError), match=message):
        folder_classes(["a", "b"], 5, synonyms, given, "c.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected lines `folder,class` below a line of headings .* got none"),
        ("folder,class\n", "got none"),
        ("folder,class\ncat\n", "line 2: expected a folder and a class .* got 'cat'"),
        ("folder,class\ncat,1,2\n", "line 2: expected a folder and a class .* got 'cat,1,2'"),
        ("folder,class\ncat,1\ncat,2\n", "line 3: 'cat' was '1' before and is '2' here"),
    ],
)
def test_a_file_that_is_no_list_of_folders_says_which_line(tmp_path, text, message):
    file = tmp_path / "classes.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        read_classes(file)


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(DataError, match=r"--classes: cannot read .*: No such file"):
        read_classes(tmp_path / "no.csv")


def test_names_with_commas_go_between_quotes(tmp_path):
    file = tmp_path / "classes.csv"
    file.write_text('folder,class\n"cats, stray", tabby\n\n')
    assert read_classes(file) == {"cats, stray": "tabby"}
