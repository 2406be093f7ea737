# Built from native/ where there is a compiler; see compiled.py.

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, final

INTERFACE: int

def tracked(kinds: tuple[type, ...], /) -> list[Any]: ...

@final
class Tape:
    def __new__(
        cls,
        own: int,
        codes: dict[int, Any],
        numbers: dict[int, int],
        resumes: dict[tuple[int, int], int],
        files: dict[str, bool],
        disable: object,
        line: Callable[[CodeType, int, FrameType], Any],
        start: Callable[[CodeType, FrameType], Any],
        resume: Callable[[CodeType, int, FrameType], Any],
        leave: Callable[[CodeType, FrameType], Any],
        unwind: Callable[[CodeType, FrameType], Any],
        hear: Callable[[CodeType, int | None], int | None],
        pause: Callable[[int, int], int],
        fail: Callable[[BaseException], None],
    ) -> Tape: ...
    def on_line(self, code: CodeType, line: int, /) -> Any: ...
    def on_start(self, code: CodeType, offset: int, /) -> Any: ...
    def on_resume(self, code: CodeType, offset: int, /) -> Any: ...
    def on_leave(self, code: CodeType, offset: int, value: object, /) -> Any: ...
    def on_unwind(self, code: CodeType, offset: int, error: BaseException, /) -> Any: ...
    def take(self) -> bytes: ...
    def load(self, stack: tuple[CodeType | None, ...], /) -> None: ...
    def size(self) -> int: ...

@final
class Watch:
    def __new__(
        cls,
        root: Any,
        module_code: CodeType,
        watched: tuple[CodeType, ...],
        looks: Any,
        begin: Callable[[CodeType, FrameType], None],
        end: Callable[[CodeType, FrameType], None],
        unwind: Callable[[CodeType, FrameType], None],
        look: Callable[[CodeType, FrameType], None],
        limit: int,
    ) -> Watch: ...
    def on_begin(self, code: CodeType, offset: int, /) -> Any: ...
    def on_end(self, code: CodeType, offset: int, value: object, /) -> Any: ...
    def on_unwind(self, code: CodeType, offset: int, error: BaseException, /) -> Any: ...
    def top(self, ident: int, /) -> Any: ...
    def move(self, ident: int, node: Any, /) -> None: ...
    def logs(self) -> list[tuple[int, bytes, int]]: ...
