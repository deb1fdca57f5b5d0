/* A stand-in for libnccl.so.2: writes down what it is asked, and does what NCCL does in a group of one rank, a copy.
   The signatures are those of NCCL's public header nccl.h. */
#include <stdio.h>
#include <string.h>

typedef struct { char internal[128]; } ncclUniqueId;
static char said[1 << 20], failing[64];
static int result_of_failing, async_state, used;

static int note(const char *name, const char *arguments) {
    int room = sizeof said - used;
    int n = snprintf(said + used, room, "%s %s\n", name, arguments);
    if (n < room) used += n;
    return strcmp(name, failing) == 0 ? result_of_failing : 0;
}
const char *fake_said(void) { return said; }
void fake_forget(void) { used = 0; said[0] = 0; failing[0] = 0; async_state = 0; }
void fake_fail(const char *name, int result) { snprintf(failing, sizeof failing, "%s", name); result_of_failing = result; }
void fake_async(int state) { async_state = state; }

static void copy(const void *from, void *to, size_t count, int type) {
    /* Bytes of an element by ncclDataType_t: int8 uint8 int32 uint32 int64 uint64 half float double bfloat16. */
    static const size_t width[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    if (from > (const void *)4096 && from != to) memmove(to, from, count * width[type]);
}
#define SAY(...) char text[400]; snprintf(text, sizeof text, __VA_ARGS__)

int ncclGetVersion(int *v) { *v = 22809; return 0; }
int ncclGetUniqueId(ncclUniqueId *id) {
    memset(id, 0, sizeof *id);
    id->internal[0] = 7; id->internal[127] = 9;
    return note("ncclGetUniqueId", "");
}
int ncclCommInitRank(void **comm, int n, ncclUniqueId id, int rank) {
    *comm = (void *)0xc0;
    SAY("%d %d %d %d", n, id.internal[0], id.internal[127], rank);
    return note("ncclCommInitRank", text);
}
int ncclCommDestroy(void *c) { SAY("%p", c); return note("ncclCommDestroy", text); }
int ncclCommAbort(void *c) { SAY("%p", c); return note("ncclCommAbort", text); }
int ncclCommGetAsyncError(void *c, int *state) { (void)c; *state = async_state; return 0; }
int ncclGroupStart(void) { return note("ncclGroupStart", ""); }
int ncclGroupEnd(void) { return note("ncclGroupEnd", ""); }
const char *ncclGetErrorString(int r) { return r == 5 ? "invalid usage" : r == 6 ? "remote process exited" : "other"; }
const char *ncclGetLastError(void *c) { return c ? "the cable\n is out" : ""; }

int ncclAllReduce(const void *s, void *r, size_t n, int t, int op, void *c, void *st) {
    SAY("%p %p %zu %d %d %p %p", s, r, n, t, op, c, st); copy(s, r, n, t); return note("ncclAllReduce", text);
}
int ncclBroadcast(const void *s, void *r, size_t n, int t, int root, void *c, void *st) {
    SAY("%p %p %zu %d %d %p %p", s, r, n, t, root, c, st); copy(s, r, n, t); return note("ncclBroadcast", text);
}
int ncclReduce(const void *s, void *r, size_t n, int t, int op, int root, void *c, void *st) {
    SAY("%p %p %zu %d %d %d %p %p", s, r, n, t, op, root, c, st); copy(s, r, n, t); return note("ncclReduce", text);
}
int ncclAllGather(const void *s, void *r, size_t n, int t, void *c, void *st) {
    SAY("%p %p %zu %d %p %p", s, r, n, t, c, st); copy(s, r, n, t); return note("ncclAllGather", text);
}
int ncclReduceScatter(const void *s, void *r, size_t n, int t, int op, void *c, void *st) {
    SAY("%p %p %zu %d %d %p %p", s, r, n, t, op, c, st); copy(s, r, n, t); return note("ncclReduceScatter", text);
}
static const void *sent;
int ncclSend(const void *s, size_t n, int t, int peer, void *c, void *st) {
    SAY("%p %zu %d %d %p %p", s, n, t, peer, c, st); sent = s; return note("ncclSend", text);
}
int ncclRecv(void *r, size_t n, int t, int peer, void *c, void *st) {
    SAY("%p %zu %d %d %p %p", r, n, t, peer, c, st); copy(sent, r, n, t); return note("ncclRecv", text);
}
